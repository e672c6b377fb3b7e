"""Errors that are meant for a person: what is wrong, where, and what to do.

Only the command line turns them into an exit status; everything below raises.
"""


class UserError(Exception):
    """Something the user can mend.

    ``problem`` says what is wrong and where, ``remedy`` what to do about it.
    Printed without a traceback, exit status 2.
    """

    def __init__(self, problem: str, *, remedy: str = "") -> None:
        self.problem = problem
        self.remedy = remedy
        super().__init__(f"{problem}\n  {remedy}" if remedy else problem)


class StageFailed(Exception):
    """A stage of a trial could not be completed: a result of the study, not a fault of the program.

    ``stage`` is plan, launch, warmup, load or shutdown; ``excerpt`` the end of the log that shows why.
    """

    def __init__(self, stage: str, reason: str, *, excerpt: str = "") -> None:
        self.stage = stage
        self.reason = reason
        self.excerpt = excerpt
        super().__init__(f"{stage}: {reason}")
