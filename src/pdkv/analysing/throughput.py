"""Throughput of a load point, over a window in which the load is full.

Why not measured tokens over the time from the first to the last of them: requests of the ramp and of the drain run
beside them, take their share of the server and are not counted, so that this is far too low where requests are few
(see docs/decisions/0003-throughput-window.md).
"""

from dataclasses import dataclass

import numpy as np

from pdkv.analysing.point_requests import PointRequests
from pdkv.analysing.stats import FloatArray


@dataclass(frozen=True)
class Window:
    """A stretch of the load, seconds of the monotonic clock, ``end_s`` after ``start_s``."""

    start_s: float
    end_s: float

    @property
    def length_s(self) -> float:
        """Seconds from start to end."""
        return self.end_s - self.start_s


def steady_window(requests: PointRequests, arrival: str) -> Window | None:
    """Where the load of a point is full; ``None`` where it never is.

    It opens with the first measured send, but not before every ramp request is sent and every user has started.
    Open loop: it closes with the last measured send, and there is none if that is sooner than a request lasts.
    Closed loop: it closes after as many whole turns as there are (a turn is one send for each user) before the first
    user finds nothing more to send. Users move in step for a while after the ramp, so a window of one and a half turns
    would hold two prefill waves and one and a half decode waves.
    """
    measured_sends = requests["t_send_s"][(requests.part == "measured") & requests.sent]
    if not measured_sends.size:
        return None
    ramp_sends = requests["t_send_s"][(requests.part == "ramp") & requests.sent]
    start_s = float(max(measured_sends.min(), ramp_sends.max(initial=-np.inf)))
    if arrival != "closed":
        return _longer_than_a_request(_window(start_s, float(measured_sends.max())), requests)
    return _whole_turns(requests, start_s)


def _longer_than_a_request(window: Window | None, requests: PointRequests) -> Window | None:
    """In a window shorter than a request, few tokens of its own requests arrive: nothing steady is to be seen there."""
    lasted = (requests["t_last_s"] - requests["t_send_s"])[requests.ok & (requests.part == "measured")]
    return window if window and lasted.size and window.length_s > float(np.mean(lasted)) else None


def tokens_in(requests: PointRequests, window: Window) -> int:
    """Output tokens of successful requests of any part that arrived within the window.

    Where only their number in a whole request is known, they count as spread evenly over its events: exact for
    requests within the window.
    """
    t_s = requests.token_t_s
    arrived = (t_s > window.start_s) & (t_s <= window.end_s) & requests.per_token(requests.ok)
    counts = requests.token_n[arrived]
    if (unknown := np.isnan(counts)).any():
        spread = requests["output_tokens"] / np.maximum(requests.events, 1)
        counts = np.where(unknown, np.repeat(spread, requests.events)[arrived], counts)
    return round(float(counts.sum(dtype=np.float64)))


def requests_in(requests: PointRequests, window: Window) -> int:
    """Successful requests of any part whose output overlaps the window."""
    overlaps = (requests["t_first_s"] <= window.end_s) & (requests["t_last_s"] > window.start_s)
    return int(np.count_nonzero(overlaps & requests.ok))


def mean_in_flight(requests: PointRequests, window: Window) -> float:
    """Requests in flight, failed ones too, averaged over the time of the window."""
    start_s, end_s = requests["t_send_s"][requests.sent], _end_s(requests)[requests.sent]
    overlap = np.minimum(end_s, window.end_s) - np.maximum(start_s, window.start_s)
    return float(np.clip(overlap, 0, None).sum() / window.length_s)


def sends_in(requests: PointRequests, window: Window) -> int:
    """Requests sent within the window, its start excluded and its end included: as many as there are gaps."""
    sends = requests["t_send_s"]
    return int(np.count_nonzero((sends > window.start_s) & (sends <= window.end_s)))


def whole_run_s(requests: PointRequests) -> float | None:
    """Seconds from the first send to the end of the last answer of the point, ramp and drain included."""
    if not requests.sent.any():
        return None
    return float(_end_s(requests)[requests.sent].max() - requests["t_send_s"][requests.sent].min())


def _whole_turns(requests: PointRequests, start_s: float) -> Window | None:
    sent = requests.sent
    users, sends, ends = requests["user"][sent], requests["t_send_s"][sent], _end_s(requests)[sent]
    _, user = np.unique(users, return_inverse=True)
    count = int(user.max()) + 1
    first_sends, last_ends = np.full(count, np.inf), np.full(count, -np.inf)
    np.minimum.at(first_sends, user, sends)
    np.maximum.at(last_ends, user, ends)
    start_s = max(start_s, float(first_sends.max()))
    first_retirement_s = float(last_ends.min())
    # The retirement stands for the send that would have followed had there been more to send.
    marks = np.append(np.sort(sends[(sends > start_s) & (sends <= first_retirement_s)]), first_retirement_s)
    turns = marks.size // count
    return _window(start_s, float(marks[turns * count - 1])) if turns else _window(start_s, first_retirement_s)


def _window(start_s: float, end_s: float) -> Window | None:
    return Window(start_s, end_s) if end_s > start_s else None


def _end_s(requests: PointRequests) -> FloatArray:
    """When each answer was over; without that stamp its last token, without tokens its send."""
    ends = np.where(np.isnan(requests["t_end_s"]), requests["t_last_s"], requests["t_end_s"])
    return np.where(np.isnan(ends), requests["t_send_s"], ends)
