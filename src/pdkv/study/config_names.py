"""Names of workloads and modes: they become folders."""

import re
import unicodedata

from pdkv.study.config_messages import fault
from pdkv.study.yaml_source import KeyPath, YamlSource

RESERVED_NAMES = {"cell.json", "logs", "report", "summary"}
RESERVED_NAMES |= {"comparisons.csv", "objectives.csv", "summary.csv", "summary.parquet"}


def check_names(kind: str, names: list[str], source: YamlSource) -> None:
    """Refuse names that could not be folders: they must be distinct on every file system and safe in every shell."""
    seen: dict[str, str] = {}
    for name in names:
        where: KeyPath = (kind, name)
        if not re.fullmatch(r"\w[\w.+-]{0,63}", name) or name.endswith("."):
            raise fault(
                source,
                where,
                f"{name!r} can't be a name",
                "letters, digits and _ . + -, at most 64, a letter or digit first",
            )
        folded = unicodedata.normalize("NFKC", name).casefold()
        if folded in RESERVED_NAMES or re.fullmatch(r"r\d+", folded):
            raise fault(source, where, f"{name} is the name of something else under results/", "another name")
        if folded in seen:
            raise fault(
                source,
                where,
                f"{name} and {seen[folded]} would share a folder",
                "names that differ in more than case or accents' coding",
            )
        seen[folded] = name
