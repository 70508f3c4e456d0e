"""Whether a fleet follows its load, from the options of `ctl apply` and what the fleet keeps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from controlplane.domain.errors import InputError
from controlplane.domain.plan import Plan
from controlplane.domain.spec import Spec
from controlplane.files.documents import Document
from controlplane.files.fleets import FleetFiles
from controlplane.files.following import Following
from controlplane.files.specs import read_spec
from controlplane.runtime.fleet.execute import Say


@dataclass(frozen=True, slots=True)
class Asked:
    """The options of `ctl apply`; None is as the fleet does now."""

    spec: Path | None
    follow: bool | None
    dwell_s: float | None
    all_cores: bool


@dataclass(frozen=True, slots=True)
class Wanted:
    """How the fleet is to follow; None: it keeps no spec. `spec` is one to keep, None for the kept one."""

    following: Following | None
    spec: tuple[Spec, Document] | None = None


def wanted(files: FleetFiles, plan: Plan, asked: Asked, say: Say) -> Wanted:
    """How a fleet is to follow its load with this plan.

    Raises InputError for a spec that the plan was not made from, and for following without one.
    """
    known = files.following.settings()
    given = None if asked.spec is None else read_spec(asked.spec)
    if given is not None and given[1].sha256 != plan.spec_sha256:
        raise InputError(
            f"{asked.spec} is not the spec that the plan was made from; plan again with it", field="--spec"
        )
    sha256 = plan.spec_sha256 if given is not None else known.spec_sha256 if known is not None else None
    if sha256 is None or sha256 != plan.spec_sha256:
        if asked.follow:
            raise InputError(
                "needs the spec that the plan was made from: give --spec SPEC", field="--follow-load"
            )
        if known is not None and known.follow:
            say("warning: the fleet stops following its load: it keeps another spec (--spec SPEC)")
        return Wanted(known)
    following = Following(sha256) if known is None else replace(known, spec_sha256=sha256)
    return Wanted(
        replace(
            following,
            follow=following.follow if asked.follow is None else asked.follow,
            dwell_s=following.dwell_s if asked.dwell_s is None else asked.dwell_s,
            all_cores=asked.all_cores or (given is None and following.all_cores),
        ),
        given,
    )


def keep(files: FleetFiles, wanted: Wanted, profiles: Path) -> None:
    """Write down how the fleet follows, with the spec and the profiles. Raises EngineError."""
    if wanted.following is None:
        return
    if wanted.spec is not None:
        spec, document = wanted.spec
        files.following.keep(wanted.following, document, spec, profiles)
    elif wanted.following != files.following.settings():
        files.following.write(wanted.following)
