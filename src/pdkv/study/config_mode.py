"""A mode of a study from its name and its section: which servers it has, and how they are told to run."""

from pdkv.records import Mode
from pdkv.study.config_messages import choices, fault
from pdkv.study.config_promises import DISAGGREGATED, KNOWN_MODES, REPLICATED, check_promises
from pdkv.study.config_schema import ModeSection
from pdkv.study.engine_args import check_args, normalize_args
from pdkv.study.yaml_source import KeyPath, YamlSource

Topology = tuple[int, int, int]  # prefill, decode, replicas: 0 where the mode has none


def resolve_mode(name: str, section: ModeSection, source: YamlSource) -> Mode:
    """What a mode's name promises and what its section says, together.

    Raises :class:`UserError` where the two contradict each other, and for topologies that do not exist.
    """
    where: KeyPath = ("modes", name)
    check_promises(name, section, source)
    prefill, decode, replicas = _topology(name, section, source)
    _check_nodes(prefill + decode or replicas, section.nodes, where, source)
    named = DISAGGREGATED.fullmatch(name) or REPLICATED.fullmatch(name)
    if not (section.model_fields_set or named or name in KNOWN_MODES):
        raise fault(
            source,
            where,
            f"{name} is not a known mode and has no settings",
            choices(KNOWN_MODES, name, "or settings for it"),
        )
    for key in ("args", "prefill_args", "decode_args"):
        check_args(getattr(section, key), (*where, key), source)
    return Mode(
        id=name,
        prefill=prefill,
        decode=decode,
        replicas=replicas,
        chunked_prefill=_chunked_prefill(name, section, source),
        tensor_parallel_size=section.tensor_parallel_size,
        args=normalize_args(section.args),
        prefill_args=normalize_args(section.prefill_args),
        decode_args=normalize_args(section.decode_args),
        env=section.env,
        kv_connector=section.kv_connector.name if prefill else None,
        kv_connector_config=section.kv_connector.config if prefill else {},
        endpoint=section.endpoint,
        nodes=section.nodes,
    )


def _topology(name: str, section: ModeSection, source: YamlSource) -> Topology:
    where: KeyPath = ("modes", name)
    split, copies = DISAGGREGATED.fullmatch(name), REPLICATED.fullmatch(name)
    prefill, decode, replicas = section.prefill, section.decode, section.replicas
    if split:
        said = (int(split[1]), int(split[2]))
        if (prefill or said[0], decode or said[1]) != said or replicas:
            raise fault(
                source, where, f"its name says {said[0]} prefill and {said[1]} decode, its settings something else"
            )
        prefill, decode = said
    if copies:
        if (replicas or int(copies[1])) != int(copies[1]) or prefill or decode:
            raise fault(source, where, f"its name says {copies[1]} replicas, its settings something else")
        replicas = int(copies[1])
    if bool(prefill) != bool(decode) or (prefill and replicas):
        raise fault(source, where, "a topology that does not exist", "prefill and decode together, or replicas alone")
    if prefill and decode:
        return prefill, decode, 0
    if section.prefill_args or section.decode_args or "kv_connector" in section.model_fields_set:
        raise fault(
            source,
            where,
            "prefill_args, decode_args or kv_connector without prefill and decode",
            "prefill: 1, decode: 1",
        )
    return 0, 0, replicas or 1


def _check_nodes(instances: int, nodes: int, where: KeyPath, source: YamlSource) -> None:
    if instances % nodes:
        raise fault(
            source,
            (*where, "nodes"),
            f"{instances} instances can't be dealt evenly to {nodes} nodes",
            " or ".join(str(count) for count in range(1, instances + 1) if instances % count == 0),
        )


def _chunked_prefill(name: str, section: ModeSection, source: YamlSource) -> bool | None:
    chunked = section.chunked_prefill
    if name not in ("chunked", "unchunked"):
        return chunked
    promised = name == "chunked"
    if chunked is not None and chunked is not promised:
        raise fault(source, ("modes", name, "chunked_prefill"), f"{chunked} contradicts the mode's name")
    return promised
