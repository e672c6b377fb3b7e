"""What must hold before a study starts; each is known at once and would otherwise be learned after hours of measuring.

Each function imports what it needs when it runs: no fault should cost a slow start.
"""

import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from pdkv.errors import UserError

if TYPE_CHECKING:
    from pdkv.study.config import Study

ENGINES = Path(".engine")  # embedded engines and the bundled model, beside results/


def require_folder(path: Path) -> None:
    """A folder that this user may look into, or nothing yet: what is read and written there must not fail later."""
    if _is_folder(path) and not os.access(path, os.R_OK | os.X_OK):
        remedy = "give this user the right to read it, or work in another folder"
        raise UserError(f"cannot look into {path.absolute()}: this user has no right to", remedy=remedy)


def require_study_folders(study: "Study") -> None:
    """All that Snakemake looks into to find out what is due: it would tell a fault there with a traceback."""
    from pdkv.study.report_editions import editions

    files = [Path("results", trial.name, "any") for trial in study.trials()]
    for edition in editions(study.report.language):
        files += [Path(f"reports/figures{edition.suffix}", workload.id, "any") for workload in study.workloads]
        files.append(Path(f"reports/tables{edition.suffix}/any"))
    files += [Path(folder, "logs/any") for folder in ("results", "reports")]
    for folder in dict.fromkeys(parent for file in files for parent in reversed(file.parents[:-1])):
        require_folder(folder)


def _is_folder(path: Path) -> bool:
    """Whether it is one; else nothing is there. An error of a link or a file in its place."""
    try:
        is_folder = stat.S_ISDIR(path.stat().st_mode)
    except FileNotFoundError:
        if not path.is_symlink():
            return False
        remedy = f"mount or make {path.readlink()}, or remove the link"
        raise UserError(f"{path} is a link to {path.readlink()}, which is not there", remedy=remedy) from None
    except OSError as error:
        if not path.is_symlink():
            raise UserError(
                f"cannot look at {path.absolute()}: {error.strerror}", remedy="mend that, or work in another folder"
            ) from None
        remedy = "remove the link" + (", or give this user the right" if isinstance(error, PermissionError) else "")
        raise UserError(
            f"{path} is a link to {path.readlink()}, which cannot be followed: {error.strerror}", remedy=remedy
        ) from None
    if is_folder:
        return True
    if path.is_symlink():
        remedy = "let it name a folder, or remove the link"
        raise UserError(f"{path} is a link to {path.readlink()}, which is a file", remedy=remedy)
    raise UserError(f"{path} is a file, and pdkv's folder has that name", remedy="move it elsewhere")


def require_writable(paths: Iterable[Path]) -> None:
    """Files that are there and are to be written anew, and the folders that new ones come into.

    What may not be written to Snakemake would tell with a traceback, the first of them after hours.
    """
    checked: set[Path] = set()
    for path in paths:
        for place in (path, path.parent):
            while not os.path.lexists(place):
                place = place.parent
            if place not in checked:
                checked.add(place)
                if place != path:
                    _is_folder(place)
                _require_access(place)


def _require_access(place: Path) -> None:
    try:
        if os.access(place, os.W_OK | os.X_OK if place.is_dir() else os.W_OK):
            return
        is_protected = os.statvfs(place).f_flag & os.ST_RDONLY
    except OSError as error:  # a link that leads nowhere
        raise UserError(
            f"cannot write {place.absolute()}: {error.strerror}", remedy="move it elsewhere, and run snakemake again"
        ) from None
    why, cure = (
        ("its disk is read-only", "make this disk writable")
        if is_protected
        else ("this user has no right to", "give this user the right to write there")
    )
    raise UserError(
        f"cannot write {place.absolute()}: {why}", remedy=f"{cure} and run snakemake again, or work in another folder"
    )


def require_claims(study: "Study") -> list[str]:
    """Read once before anything runs: a fault in it is better known now than in the report.

    Returns warnings: what claims name and the study does not have.
    """
    if not study.report.claims:
        return []
    from pdkv.analysing.claim_file import find_strangers, read_claims

    try:
        claims = read_claims(Path(study.report.claims))
    except UserError as error:
        raise UserError(f"{study.source}: report.claims: {error.problem}", remedy=error.remedy) from None
    return find_strangers(claims, [mode.id for mode in study.modes], [dtype.id for dtype in study.dtypes])


def require_typefaces(study: "Study") -> None:
    """Known before hours of measuring rather than after them."""
    from pdkv.study.report_editions import editions

    foreign = [edition.language for edition in editions(study.report.language) if edition.language != "en"]
    if foreign:
        from pdkv.reporting.typefaces import choose_typefaces
        from pdkv.reporting.wording import Wording

        choose_typefaces([text for language in foreign for text in Wording(language).all_texts()])


def require_options_of_jobs(options: Iterable[tuple[str, str]]) -> None:
    """What trials need of Slurm, and what the profile gives: known before hours of waiting for a node's lease."""
    from pdkv.measuring.job_request import require_kept_options

    for needed, given in options:
        require_kept_options(needed, given)


def require_device_told(study: "Study") -> None:
    """A study on a cluster names its device: this machine is not where it runs."""
    from pdkv.measuring.job_request import require_known_device

    if not all(mode.endpoint for mode in study.modes):
        require_known_device(study.engine)


def require_reachable_model(study: "Study", shares_disk: bool) -> None:
    """The jobs must see the model's folder."""
    if study.model.name == "bundled" and not shares_disk:
        raise UserError(
            f"{study.source}: model: bundled is made in this folder, which the jobs do not see",
            remedy="copy a model into a volume that all pods have, and name its folder: model: /models/NAME",
        )


def tell_survey(study: "Study", stream: TextIO) -> None:
    """What it would do on this machine; an error where it can't."""
    from pdkv.measuring.survey import describe_survey, refuse_obstacles, survey_study

    survey = survey_study(study, ENGINES)
    print(describe_survey(survey), file=stream, flush=True)
    refuse_obstacles(study, survey)
