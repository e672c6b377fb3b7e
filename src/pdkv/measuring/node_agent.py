"""What a trial needs done on another node than its own: ``python -m pdkv.measuring.node_agent``, a step of its job.

It says that it is there, then reads orders from standard input, a line of JSON each, and answers each with a line:
first a plan with the instances of this node, for which it leases devices, reserves ports and looks at the machine, then
whatever :data:`ORDERS` names.
It holds what it has until standard input closes: that is how it learns that the measurement is over or was killed.
Stop signals are left to the measurement, which then ends the servers before their devices are given back.
"""

import json
import os
import select
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any

from pdkv.errors import StageFailed, UserError
from pdkv.measuring.cores import bind_to_cores
from pdkv.measuring.interruption import STOP_SIGNALS
from pdkv.measuring.ports import PortReservation, reserved_ports
from pdkv.measuring.process_tree import find_marked, send_signal
from pdkv.measuring.trial_devices import TrialDevices, lease_devices
from pdkv.measuring.trial_mark import MARK, make_mark

Plan = Mapping[str, Any]
Order = Mapping[str, Any]


def main() -> int:
    """Serve one trial, until standard input closes."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    _say({"done": None})  # the step has begun
    line = sys.stdin.readline()
    if not line.endswith("\n"):  # the measurement was stopped before it could say what it needs
        return 0
    first = json.loads(line)
    plan, mark = first["plan"], make_mark()
    try:
        with (
            lease_devices(plan, first["trial"], _say_while_waiting) as devices,
            reserved_ports("127.0.0.1", first["address"]) as ports,
        ):
            _say({"done": _describe_node(plan, devices, ports, mark)})
            devices.take_cores()
            for line in sys.stdin:
                order = json.loads(line)
                _say(_obey(ORDERS[order["do"]], plan, devices, {**order, "mark": mark}))
    except UserError as error:
        _say({"problem": error.problem, "remedy": error.remedy})
    except EOFError:  # it was over before there were devices
        pass
    return 0


def _say_while_waiting(text: str) -> None:
    """No order comes before the devices are there: what can be read then is the end of the measurement."""
    if select.select([sys.stdin], [], [], 0)[0]:
        raise EOFError
    _say({"say": text})


def _obey(act: Callable[[Plan, TrialDevices, Order], Any], plan: Plan, devices: TrialDevices, order: Order) -> Order:
    try:
        return {"done": act(plan, devices, order)}
    except StageFailed as failure:
        return {"failed": [failure.stage, failure.reason]}


def _describe_node(plan: Plan, devices: TrialDevices, ports: PortReservation, mark: str) -> dict[str, Any]:
    """What the measurement has to know of this node before it can place instances on it."""
    return {
        "environment": devices.describe(plan["engine"]["python"]),
        "cores": list(devices.cores),
        "gpus": devices.gpus,
        "ports": [ports.take() for _ in plan["instances"]],
        "kv_ports": [ports.take_usual(instance["ranks"]) for instance in plan["instances"]],
        "mark": mark,
    }


def _require_memory(plan: Plan, devices: TrialDevices, order: Order) -> None:
    devices.require_memory(plan)


def _bind(plan: Plan, devices: TrialDevices, order: Order) -> dict[str, int]:
    binding = bind_to_cores(
        order["pid"], order["cores"], ranks=order["ranks"], free_main_threads=order["free_main_threads"]
    )
    return {"processes": binding.processes, "threads": binding.threads, "moved": binding.moved}


def _look_beside(plan: Plan, devices: TrialDevices, order: Order) -> list[str]:
    devices.look_beside(at_once=True)
    return sorted(devices.beside)


def _end(plan: Plan, devices: TrialDevices, order: Order) -> list[dict[str, Any]]:
    """What is left here of the trial, once its servers have been told to stop: processes, memory of GPUs."""
    left: list[dict[str, Any]] = []
    for process in find_marked(f"{MARK}={order['mark']}"):
        send_signal(process, signal.SIGKILL)
        left.append({"name": "unknown", "pid": process.pid, "process": process.name})
    return [*left, *devices.leftovers()]


ORDERS: dict[str, Callable[[Plan, TrialDevices, Order], Any]] = {
    "require_memory": _require_memory,
    "bind": _bind,
    "look_beside": _look_beside,
    "end": _end,
}


def _say(message: Order) -> None:
    try:
        print(json.dumps(message), flush=True)
    except BrokenPipeError:  # nobody is left to hear it
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


if __name__ == "__main__":
    sys.exit(main())
