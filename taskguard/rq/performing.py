"""A job that a guarded worker, or a synchronous queue, runs: it calls the function through its guard.

A plain worker calls the function itself. That is enough for a decorated function, but not for one that is guarded by
name or called by a schedule.
"""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

from taskguard.fence import current_fence
from taskguard.keys.signatures import fence_parameter
from taskguard.rq.guarded_job import GuardedJob, guarded_job_class
from taskguard.rq.guarding import guard_of


class PerformedJob(GuardedJob):
    def _execute(self) -> Any:
        own = guard_of(self.func)
        guarded = self.guard_at(self.queue_class) if own is None else own
        if self.envelope.slot is None and guarded is own:
            if own is None and self.envelope.key:
                from taskguard.rq.unguarded import let_run

                let_run(self)
            return super()._execute()  # a decorated function guards itself
        from taskguard.rq.delivery import deliver  # most jobs do not need it

        args = self.args if self.instance is None else (self.instance, *self.args)
        if guarded is None:
            return deliver(self, None, self._call_plain, args, self.kwargs)
        return deliver(self, guarded, lambda: guarded.call(args, self.kwargs), args, self.kwargs)

    def _call_plain(self) -> Any:
        """Pass the fence of the slot to a plain function that a schedule calls, if it takes one."""
        name = _fence_wanted(self)
        if name is None:
            return super()._execute()
        return self.func(*self.args, **self.kwargs, **{name: current_fence()})


def performed(job: Any) -> Any:
    """The same object, as a `PerformedJob`."""
    if not isinstance(job, PerformedJob):
        job.__class__ = _performed_class(guarded_job_class(type(job)))
    return job


@cache
def _performed_class(base: Any) -> Any:
    return PerformedJob if base is GuardedJob else type(base.__name__, (PerformedJob, base), {})


def _fence_wanted(job: GuardedJob) -> str | None:
    """The parameter of a plain function that receives the fence, unless its caller passes it."""
    function = job.func
    if not inspect.isfunction(function):
        return None
    name = fence_parameter(function)
    given = inspect.signature(function).bind_partial(*job.args, **job.kwargs).arguments
    return None if name in given else name
