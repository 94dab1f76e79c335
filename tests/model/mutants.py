"""Each rule, dropped: the model must find what goes wrong without it.

Rules of the store are dropped in `dropped.py`, those of the machines in `slips.py`, those of queues and parents by a
flag of `Behaviour`. Each mutant names the cheapest configuration that catches it, and what kind of violation that is.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from taskguard.protocol.rules import Rules
from tests.model import dropped, slips, stage
from tests.model.configurations import faults
from tests.model.world import Behaviour, Config


@dataclass(frozen=True)
class Mutant:
    rule: str
    """What is dropped."""
    kind: str
    """What goes wrong then."""
    config: Config
    rules: Rules = field(default_factory=Rules)
    behaviour: Behaviour = field(default_factory=Behaviour)


ONE = Config(faults=frozenset(), budget=0, jobs=1)
TWO = Config(faults=frozenset(), budget=0)
REPUBLISHED = replace(TWO, queue_ends=False, duplicates=True, copy_ages=True)
JOINER = replace(TWO, joiners=frozenset({1}))
UNCLAIMED_JOINER = replace(JOINER, bare=frozenset({1}))
POISON = replace(TWO, workers=1, poison=frozenset({0}), max_starts=2)
GIVES_WAY = replace(TWO, bare=frozenset({1}), copy_ages=True, faults=faults("lose"), budget=1)
CALLED_AGAIN = replace(ONE, called_again=True)

MUTANTS: dict[str, Mutant] = {
    "no repeat": Mutant(
        "a claim asked again gets its lease back",
        stage.ANSWERED_OTHERWISE,
        replace(ONE, faults=faults("lost"), budget=1),
        dropped.NeverRepeats(),
    ),
    "repeat does not renew": Mutant(
        "a lease that is given back to its holder is whole again",
        stage.SIDE_BY_SIDE,
        replace(ONE, faults=faults("lost", "pause", "redeliver"), budget=3),
        dropped.RepeatDoesNotRenew(),
    ),
    "repeat after an end": Mutant(
        "a lease that ran out is not given back to a job that has ended since",
        stage.STARTED_AGAIN,
        replace(UNCLAIMED_JOINER, faults=faults("redeliver", "lost", "pause"), budget=3),
        dropped.RepeatsAfterAnEnd(),
    ),
    "adopts running": Mutant(
        "a running entry is not adopted, even by its owner",
        stage.SIDE_BY_SIDE,
        replace(ONE, faults=faults("redeliver"), budget=1),
        dropped.AdoptsRunning(),
    ),
    "adopts anybody's": Mutant(
        "a queued entry is adopted by its owner only",
        stage.CLAIM_TAKEN,
        replace(TWO, bare=frozenset({1})),
        dropped.AdoptsAnybodys(),
    ),
    "late packet adopts": Mutant(
        "an attempt that was requeued does not adopt",
        stage.GHOST,
        replace(ONE, faults=faults("late"), budget=1, retries=1, copy_ages=True),
        dropped.AdoptsForALatePacket(),
    ),
    "replaces running": Mutant(
        "only a queued job is replaced",
        stage.SIDE_BY_SIDE,
        replace(TWO, payloads_differ=True),
        dropped.ReplacesRunning(),
    ),
    "no end of a claim": Mutant(
        "a claim that ran out counts as free",
        stage.JOB_LOST,
        replace(ONE, faults=faults("crash"), budget=1),
        dropped.ClaimsNeverRunOut(),
    ),
    "no reuse": Mutant(
        "a finished twin answers for it", stage.DONE_AGAIN, replace(TWO, reuse="success"), dropped.ReusesNothing()
    ),
    "twin ignored": Mutant("a joiner is answered its twin's end", stage.DONE_AGAIN, JOINER, dropped.IgnoresTwin()),
    "joins any end": Mutant(
        "a twin without an outcome is no answer",
        stage.JOB_LOST,
        replace(JOINER, faults=faults("revoke"), budget=1),
        dropped.JoinsAnyEnd(),
    ),
    "joined while it runs": Mutant(
        "a joiner that runs elsewhere ends as that run does",
        stage.TOLD_WRONG,
        replace(UNCLAIMED_JOINER, faults=faults("redeliver"), budget=1),
        dropped.JoinedWhileItRuns(),
    ),
    "joined without receipt": Mutant(
        "a joiner that is answered leaves a receipt in the same step",
        stage.STARTED_AGAIN,
        replace(UNCLAIMED_JOINER, faults=faults("redeliver"), budget=1),
        dropped.JoinedWithoutAReceipt(),
    ),
    "joined stays queued": Mutant(
        "a joiner that is answered waits for nothing",
        stage.KEY_BLOCKED,
        replace(UNCLAIMED_JOINER, faults=faults("redeliver", "kill"), budget=2, workers=1, queue_ends=False),
        dropped.JoinedStaysQueued(),
    ),
    "released is an end": Mutant(
        "a withdrawn call may be made again",
        stage.JOB_LOST,
        replace(CALLED_AGAIN, faults=faults("refuse"), budget=1),
        dropped.ReleasedIsAnEnd(),
    ),
    "released is forgotten": Mutant(
        "an attempt that was withdrawn is not granted again",
        stage.GHOST,
        replace(ONE, faults=faults("refuse", "late"), budget=2),
        dropped.ReleasedIsForgotten(),
    ),
    "skip told as an end": Mutant(
        "a claim asked again is skipped again in the same words",
        stage.ANSWERED_OTHERWISE,
        replace(TWO, bare=frozenset({1}), faults=faults("lost"), budget=1),
        dropped.SkippedIsToldAsAnEnd(),
    ),
    "no lingering": Mutant(
        "others are kept out for hold_at_least", stage.CLAIM_TAKEN, replace(TWO, linger=True), dropped.NeverLingers()
    ),
    "same token": Mutant("adoption grants a new token", stage.TOKEN_FELL, ONE, dropped.AdoptsUnderTheSameToken()),
    "token without clock": Mutant(
        "tokens rise though the store lost its data",
        stage.TOKEN_FELL,
        replace(ONE, faults=faults("wipe"), budget=1),
        dropped.TokenWithoutClock(),
    ),
    "token without last": Mutant(
        "tokens rise though the clock stands still",
        stage.TOKEN_FELL,
        replace(ONE, ahead=False),
        dropped.TokenWithoutLast(),
    ),
    "token without floor": Mutant(
        "tokens rise above what the resource has seen",
        stage.TOKEN_FELL,
        replace(ONE, ahead=False, floor=True, faults=faults("wipe"), budget=1),
        dropped.TokenWithoutFloor(),
    ),
    "no floor named": Mutant(
        "claims name the highest token that the resource has seen",
        stage.FLOOR_FORGOTTEN,
        replace(ONE, ahead=False, floor=True, faults=faults("wipe"), budget=1),
        behaviour=Behaviour(delivery=slips.ForgetsTheFloor),
    ),
    "end drops the token": Mutant(
        "an ended entry keeps its token", stage.TOKEN_FELL, replace(TWO, ahead=False), dropped.FreedWithoutToken()
    ),
    "newest by owner": Mutant(
        "the token decides, not the owner",
        stage.STALE_ACTED,
        replace(ONE, faults=faults("pause", "redeliver"), budget=2),
        dropped.NewestByOwner(),
    ),
    "newest by token": Mutant(
        "who knows no token must know the attempt",
        stage.STALE_ACTED,
        replace(ONE, faults=faults("kill", "redeliver"), budget=2),
        dropped.NewestByToken(),
    ),
    "newest by attempt": Mutant(
        "who knows its token must have the newest",
        stage.STALE_ACTED,
        replace(ONE, faults=faults("late", "pause"), budget=2),
        dropped.NewestByAttempt(),
    ),
    "no attempt": Mutant(
        "no attempt is nobody's attempt", stage.TOO_MANY_COPIES, REPUBLISHED, dropped.NoAttemptIsAnAttempt()
    ),
    "requeue keeps the lease": Mutant(
        "requeue ends the lease; renew acts on a running entry only",
        stage.STALE_ACTED,
        replace(ONE, retries=1),
        dropped.RequeueKeepsTheLease(),
    ),
    "requeue keeps the attempt": Mutant(
        "a mark is made once",
        stage.TOO_MANY_COPIES,
        REPUBLISHED,
        dropped.RequeueKeepsTheAttempt(),
    ),
    "requeue not remembered": Mutant(
        "a requeue asked again is answered as before",
        stage.ANSWERED_OTHERWISE,
        replace(ONE, faults=faults("lost"), budget=1, retries=1),
        dropped.RequeueIsNotRemembered(),
    ),
    "absent accepted": Mutant(
        "a verb on an absent entry is refused",
        stage.STALE_ACTED,
        replace(TWO, faults=faults("pause"), budget=1, failures=1, frees_forgotten=True),
        dropped.AbsentIsAccepted(),
    ),
    "entry dies with its lease": Mutant(
        "an entry outlives its lease",
        stage.HOLDER_REFUSED,
        replace(ONE, faults=faults("pause"), budget=1),
        behaviour=Behaviour(delivery=slips.KeepsNothing),
    ),
    "end not remembered": Mutant(
        "an end asked for again is answered as before",
        stage.ANSWERED_OTHERWISE,
        replace(ONE, faults=faults("lost"), budget=1),
        dropped.EndsAreNotRemembered(),
    ),
    "end is anybody's": Mutant(
        "an end is told only to the attempt that made it",
        stage.STALE_ACTED,
        replace(ONE, faults=faults("pause", "redeliver"), budget=2),
        dropped.EndsAreAnybodys(),
    ),
    "any end will do": Mutant(
        "an end is told only as it was",
        stage.TOLD_WRONG,
        replace(ONE, faults=faults("lost", "kill"), budget=2, requeues_lost=False),
        dropped.AnyEndWillDo(),
    ),
    "receipt of success only": Mutant(
        "every end leaves a receipt",
        stage.STARTED_AGAIN,
        replace(ONE, faults=faults("redeliver"), budget=1, failures=1),
        dropped.OnlySuccessLeavesAReceipt(),
    ),
    "skip without receipt": Mutant(
        "a skip leaves a receipt in the same step",
        stage.STARTED_AGAIN,
        replace(TWO, bare=frozenset({1}), faults=faults("redeliver"), budget=1),
        dropped.SkipsWithoutAReceipt(),
    ),
    "skip for the queued": Mutant(
        "no job is skipped for one that is only queued",
        stage.JOB_LOST,
        GIVES_WAY,
        dropped.SkipsForTheQueued(),
    ),
    "skip for itself": Mutant(
        "no job is skipped for itself",
        stage.JOB_LOST,
        replace(ONE, faults=faults("redeliver", "crash"), budget=2),
        dropped.SkipsForItself(),
    ),
    "revoked only in the queue": Mutant(
        "a revoked job has its receipt whoever holds the key",
        stage.STARTED_AGAIN,
        replace(ONE, bare=frozenset({0}), faults=faults("revoke", "redeliver", "crash"), budget=3),
        dropped.RevokedOnlyInTheQueue(),
    ),
    "revoked frees the running": Mutant(
        "a revoked message frees a queued entry only",
        stage.STALE_ACTED,
        replace(ONE, faults=faults("revoke", "redeliver"), budget=2),
        dropped.RevokedFreesTheRunning(),
    ),
    "revoked is queued again": Mutant(
        "a job that has ended elsewhere is not queued again",
        stage.KEY_BLOCKED,
        replace(ONE, faults=faults("revoke", "crash"), budget=2, retries=1, queue_ends=False),
        dropped.EndedJobIsQueuedAgain(),
    ),
    "revoked overwrites": Mutant(
        "the first end stays",
        stage.DONE_AGAIN,
        replace(JOINER, faults=faults("revoke", "redeliver"), budget=1),
        dropped.RevokedOverwritesAnEnd(),
    ),
    "release replaces an end": Mutant(
        "an end is never replaced by a plain release",
        stage.STARTED_AGAIN,
        replace(ONE, faults=faults("revoke", "redeliver", "give up", "crash"), budget=4),
        dropped.ReleaseReplacesAnEnd(),
    ),
    "release beside an end forgotten": Mutant(
        "a release that leaves an end alone is answered the same again",
        stage.ANSWERED_OTHERWISE,
        replace(ONE, faults=faults("revoke", "redeliver", "give up", "lost"), budget=4),
        dropped.ReleaseBesideAnEndIsNotRemembered(),
    ),
    "no copy goes on": Mutant(
        "one copy of a running job goes on",
        stage.JOB_LOST,
        replace(ONE, faults=faults("redeliver", "crash"), budget=2),
        dropped.NoCopyGoesOn(),
    ),
    "named copy dropped": Mutant(
        "the copy that goes on is known by its name",
        stage.JOB_LOST,
        replace(ONE, faults=faults("redeliver", "crash"), budget=2),
        dropped.NamedCopyIsDropped(),
    ),
    "copy outlives its grant": Mutant(
        "who is granted the key knows of no copy yet",
        stage.JOB_LOST,
        replace(ONE, faults=faults("crash"), budget=1),
        dropped.CopyOutlivesItsGrant(),
    ),
    "named before published": Mutant(
        "a copy is published, then named",
        stage.JOB_LOST,
        replace(ONE, faults=faults("crash"), budget=2),
        behaviour=Behaviour(delivery=slips.NamesBeforeItPublishes),
    ),
    "stamp ignored": Mutant(
        "a copy is not named if another was in the meantime",
        stage.JOB_LOST,
        replace(ONE, faults=faults("published", "crash"), budget=2, copy_ages=True),
        dropped.StampIsIgnored(),
    ),
    "never named": Mutant(
        "a copy that was published is named",
        stage.COPIES_STAY,
        replace(ONE, faults=faults("published"), budget=2, endless=frozenset({0})),
        behaviour=Behaviour(delivery=slips.NeverNamesACopy),
    ),
    "every copy goes on": Mutant(
        "the other copies are dropped",
        stage.COPIES_STAY,
        replace(ONE, faults=faults("published"), budget=2, endless=frozenset({0})),
        behaviour=Behaviour(delivery=slips.EveryCopyGoesOn),
    ),
    "name stays behind": Mutant(
        "the copy that goes on carries its name",
        stage.JOB_LOST,
        replace(ONE, faults=faults("redeliver", "crash"), budget=2, copy_ages=True),
        behaviour=Behaviour(delivery=slips.TheNameStaysBehind),
    ),
    "unmarked not published": Mutant(
        "who is answered with an unpublished twin publishes it",
        stage.JOB_LOST,
        replace(TWO, faults=faults("publisher"), budget=1),
        dropped.UnmarkedIsNotPublished(),
    ),
    "never stands in": Mutant(
        "who is told to publishes for its twin",
        stage.JOB_LOST,
        replace(TWO, faults=faults("publisher"), budget=1),
        behaviour=Behaviour(call=slips.NeverStandsIn),
    ),
    "overdue not published": Mutant(
        "a message that does not arrive is published again",
        stage.JOB_LOST,
        replace(REPUBLISHED, faults=faults("lose"), budget=1, workers=1),
        dropped.OverdueIsNotPublished(),
    ),
    "stamp does not move": Mutant(
        "only who moved the stamp publishes again", stage.TOO_MANY_COPIES, REPUBLISHED, dropped.StampDoesNotMove()
    ),
    "mover forgotten": Mutant(
        "who moved the stamp and asks again is told to publish again",
        stage.ANSWERED_OTHERWISE,
        replace(TWO, copy_ages=True, faults=faults("lost"), budget=1),
        dropped.MoverIsForgotten(),
    ),
    "copies not counted": Mutant(
        "a message is published again a few times at most",
        stage.TOO_MANY_COPIES,
        REPUBLISHED,
        dropped.CopiesAreNotCounted(),
    ),
    "requeue is no mark": Mutant(
        "a requeue by the publisher marks the entry", stage.TOO_MANY_COPIES, REPUBLISHED, dropped.RequeueIsNoMark()
    ),
    "no mark": Mutant(
        "who published says so",
        stage.TOO_MANY_COPIES,
        REPUBLISHED,
        behaviour=Behaviour(never_marks=True),
    ),
    "starts not carried over": Mutant(
        "an owner that comes again is counted on",
        stage.STARTED_TOO_OFTEN,
        replace(POISON, jobs=1),
        dropped.StartsAreNotCarriedOver(),
    ),
    "deaths forgotten": Mutant(
        "starts are remembered while others have the key", stage.STARTED_TOO_OFTEN, POISON, dropped.DeathsAreForgotten()
    ),
    "end forgets deaths": Mutant(
        "starts are remembered when others have ended", stage.STARTED_TOO_OFTEN, POISON, dropped.EndForgetsDeaths()
    ),
    "settled as a retry": Mutant(
        "a dead child's starts are kept",
        stage.STARTED_TOO_OFTEN,
        replace(POISON, jobs=1),
        behaviour=Behaviour(settles_as_retry=True),
    ),
    "no limit of starts": Mutant(
        "a job that was started max_starts times fails",
        stage.STARTED_TOO_OFTEN,
        replace(POISON, jobs=1),
        behaviour=Behaviour(delivery=slips.CountsNoStarts),
    ),
    "forget drops the token": Mutant(
        "a key freed by hand keeps its token",
        stage.TOKEN_FELL,
        replace(ONE, ahead=False, faults=faults("forget"), budget=1),
        dropped.ForgetDropsTheToken(),
    ),
    "forgets whatever is there": Mutant(
        "a key is freed by hand only as it was seen",
        stage.STALE_ACTED,
        replace(ONE, faults=faults("forget"), budget=1),
        dropped.ForgetsWhateverIsThere(),
    ),
    "settles by owner": Mutant(
        "a parent settles by attempt",
        stage.STALE_ACTED,
        replace(ONE, faults=faults("kill", "redeliver"), budget=2),
        behaviour=Behaviour(settles_by_owner=True),
    ),
    "refused acks": Mutant(
        "whose end is refused puts its message back",
        stage.JOB_LOST,
        replace(TWO, faults=faults("pause"), budget=1),
        behaviour=Behaviour(delivery=slips.AcksWhenRefused),
    ),
    "attempt in message": Mutant(
        "an attempt belongs to one delivery",
        stage.SIDE_BY_SIDE,
        replace(ONE, faults=faults("redeliver"), budget=1),
        behaviour=Behaviour(attempt_in_message=True),
    ),
    "new attempt when asked again": Mutant(
        "a claim is asked again with the same attempt",
        stage.ANSWERED_OTHERWISE,
        replace(ONE, faults=faults("lost"), budget=1),
        behaviour=Behaviour(new_attempt_when_asked_again=True),
    ),
    "own running dropped": Mutant(
        "a job that runs elsewhere is put back, not dropped",
        stage.JOB_LOST,
        replace(ONE, faults=faults("redeliver", "crash"), budget=2),
        behaviour=Behaviour(delivery=slips.DropsItsOwnRunning),
    ),
    "gives way by dropping": Mutant(
        "a job gives way to a queued one by being put back",
        stage.JOB_LOST,
        GIVES_WAY,
        behaviour=Behaviour(delivery=slips.GivesWayByDropping),
    ),
    "own queued ignored": Mutant(
        "a publisher that is told to publishes its own id again",
        stage.JOB_LOST,
        replace(CALLED_AGAIN, faults=faults("publisher"), budget=1),
        behaviour=Behaviour(call=slips.IgnoresItsOwnQueued),
    ),
    "revoked frees by owner": Mutant(
        "a revoked message settles its own attempt only",
        stage.STALE_ACTED,
        replace(ONE, faults=faults("revoke", "redeliver"), budget=2),
        behaviour=Behaviour(revoked_frees_by_owner=True),
    ),
    "revoked without receipt": Mutant(
        "a revoked job leaves a receipt",
        stage.STARTED_AGAIN,
        replace(ONE, faults=faults("revoke", "redeliver", "crash"), budget=3),
        behaviour=Behaviour(revoked_leaves_no_receipt=True),
    ),
    "joins nobody": Mutant(
        "a joiner's claim names its twin",
        stage.DONE_AGAIN,
        JOINER,
        behaviour=Behaviour(delivery=slips.JoinsNobody),
    ),
    "acks before put back": Mutant(
        "a message is acknowledged after it was put back",
        stage.JOB_LOST,
        replace(TWO, policy="wait", faults=faults("crash"), budget=1),
        behaviour=Behaviour(acks_before_put_back=True),
    ),
    "acks before retry": Mutant(
        "a message is acknowledged after its retry was published",
        stage.JOB_LOST,
        replace(ONE, faults=faults("crash"), budget=1, retries=1),
        behaviour=Behaviour(acks_before_retry=True),
    ),
}
