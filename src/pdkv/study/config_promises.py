"""What names promise: a mode called ``default`` or ``1p1d``, and a precision beside a running server, must be that.

Reports repeat these names as facts, so a study in which they would be false is refused.
"""

import re
from urllib.parse import urlsplit

from pdkv.records import Mode
from pdkv.study.config_messages import fault
from pdkv.study.config_schema import ModeSection
from pdkv.study.yaml_source import KeyPath, YamlSource

SIXTEEN_BIT = {"fp16": "float16", "bf16": "bfloat16"}
EIGHT_BIT = ("fp8", "fp8_e4m3", "fp8_e5m2")
KNOWN_MODES = ("default", "chunked", "unchunked", "1p1d", "2x")
DISAGGREGATED = re.compile(r"([1-9]\d?)p([1-9]\d?)d")
REPLICATED = re.compile(r"([1-9]\d?)x")
_PLAIN_KEYS = {"tensor_parallel_size", "env", "args", "chunked_prefill"}


def check_promises(name: str, section: ModeSection, source: YamlSource) -> None:
    """What a mode's name or its endpoint says of it must be true: reports repeat it."""
    where: KeyPath = ("modes", name)
    set_keys = section.model_fields_set
    if section.endpoint:
        _check_endpoint(name, section, source)
        if set_keys - {"endpoint"}:
            others = ", ".join(sorted(set_keys - {"endpoint"}))
            raise fault(
                source, where, f"{others} beside endpoint: a running server is not told anything", "endpoint alone"
            )
        if name in KNOWN_MODES or DISAGGREGATED.fullmatch(name) or REPLICATED.fullmatch(name):
            raise fault(
                source, where, f"{name} promises a topology that can't be known of a running server", "another name"
            )
    promised = {"default": {"tensor_parallel_size", "env"}, "chunked": _PLAIN_KEYS, "unchunked": _PLAIN_KEYS}
    if name in promised and set_keys - promised[name]:
        others = ", ".join(sorted(set_keys - promised[name]))
        raise fault(
            source,
            where,
            f"with {others} it is not what {name} means",
            f"{', '.join(sorted(promised[name]))}, or another name",
        )


def _check_endpoint(name: str, section: ModeSection, source: YamlSource) -> None:
    try:
        parts = urlsplit(section.endpoint or "")
        usable = bool(parts.hostname) and parts.port != 0 and not parts.username
    except ValueError:  # a host or a port that is none
        usable = False
    if not usable:
        raise fault(
            source, ("modes", name, "endpoint"), f"found {section.endpoint}", "an address such as http://127.0.0.1:8000"
        )


def check_precisions(modes: tuple[Mode, ...], names: list[str], source: YamlSource) -> None:
    """A precision effect must come from the KV cache of servers that were told to use it."""
    if len(names) > 1 and any(mode.endpoint for mode in modes):
        raise fault(
            source,
            ("dtypes",),
            f"found {', '.join(names)} beside an endpoint, whose precision is its own",
            "one dtype, as a label",
        )
    if set(SIXTEEN_BIT) <= set(names) and set(EIGHT_BIT) & set(names):
        raise fault(
            source,
            ("dtypes",),
            f"found {', '.join(names)}: 8-bit cells can have the weights of one 16-bit type only",
            "fp16 or bf16 beside 8-bit dtypes; a second study for the other",
        )
