"""What must hold before a study starts; each is known at once and would otherwise be learned after hours of measuring.

Each function imports what it needs when it runs: no fault should cost a slow start.
"""

from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from pdkv.errors import UserError

if TYPE_CHECKING:
    from pdkv.study.config import Study

ENGINES = Path(".engine")  # embedded engines and the bundled model, beside results/


def require_folder(path: Path) -> None:
    """What is to be written there must not fail after hours of measuring."""
    if path.is_dir():
        return
    if path.is_symlink():
        remedy = f"mount or make {path.readlink()}, or remove the link"
        raise UserError(f"{path} is a link to {path.readlink()}, which is not there", remedy=remedy)
    if path.exists():
        raise UserError(f"{path} is a file, and pdkv's folder has that name", remedy="move it elsewhere")


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
