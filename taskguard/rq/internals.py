"""What we use of RQ that it does not document. All of it is here: imports by their names, the rest in these lists.

RQ's main branch, the next major release, has a context variable in place of the stack of jobs, gives the methods of a
worker the execution that they are about, and keeps several in `worker.executions`. The code works with that too.
"""

from __future__ import annotations

from typing import Any

import rq.job

from taskguard.runtime.internals import Used, require

TESTED = {"rq": "2.8 to 2.12"}

job_stack: Any = getattr(rq.job, "_job_stack", None)
"""The jobs that this thread runs, one inside the other; None where RQ keeps that elsewhere."""

JOBS = (
    ("rq.job", "_job_stack", "saves a round trip as a job starts", "<3"),
    ("rq.job:Job", "_execute", "overridden: guards functions by their names, and the runs of slots"),
    ("rq.job:Job", "perform prepare_for_execution", "overridden: one round trip less as a job starts"),
    ("rq.job:Job", "_result", "what the body returned, which RQ stores"),
    ("rq.job:Job", "_handle_retry_result", "overridden: a deferred job of a queue that runs at once"),
    ("rq.job:Job", "restore to_dict", "overridden: the guard's field of a job's hash"),
    ("rq.job:Job", "retries_left", "RQ does not start a job again that has ended for good"),
)
QUEUES = (
    ("rq.queue:Queue", "enqueue enqueue_at create_job", "overridden: takes the caller's idempotency key"),
    ("rq.queue:Queue", "enqueue_job schedule_job enqueue_many", "overridden: claims before a job is enqueued"),
    ("rq.queue:Queue", "intermediate_queue_key push_job_id", "finds and repairs jobs that a worker lost"),
    ("rq.job:Job", "_id", "whether the caller has named the job"),
    ("rq.job:Job", "_dependency_ids", "whether RQ will refuse the job"),
    ("rq.job:Job", "get_status return_value result exc_info", "overridden: the handle of work done before"),
)
WORKERS = (
    ("rq.worker:BaseWorker", "execute_job perform_job", "overridden: the attempt of an execution"),
    ("rq.worker:BaseWorker", "execution", "the attempt that the parent settles"),
    ("rq.worker:BaseWorker", "executions", "the same, where a worker can have several", ">=3"),
    ("rq.worker:BaseWorker", "cleanup_execution", "ends a delivery that writes nothing to its job"),
    ("rq.worker:BaseWorker", "handle_execution_ended", "overridden: leaves before RQ writes; one round trip less"),
    ("rq.worker:BaseWorker", "handle_job_retry", "overridden: deferred jobs"),
    ("rq.worker:BaseWorker", "handle_job_failure", "overridden: settles for a horse that is gone"),
    ("rq.worker:BaseWorker", "_stopped_job_id", "whether the job was stopped by a command"),
    (
        "rq.worker:BaseWorker",
        "should_run_maintenance_tasks dequeue_job_and_maintain_ttl",
        "overridden: looks for jobs of workers that died",
    ),
    ("rq.worker:BaseWorker", "heartbeat", "overridden: also writes the heartbeat file"),
    ("rq.worker:BaseWorker", "is_horse", "which does not"),
    ("rq.worker:BaseWorker", "job_class queue_class", "reads jobs with the guard's field"),
    ("rq.worker:SpawnWorker", "fork_work_horse", "overridden: names our classes in the horse's program"),
    ("rq.job:Job", "_success_callback_name _failure_callback_name", "whether a job has callbacks"),
)
CRON = (
    ("rq.cron:CronScheduler", "_cron_jobs", "takes back an entry that cannot be scheduled"),
    ("rq.cron:CronScheduler", "_request_stop", "overridden: a signal does not interrupt an exchange"),
    ("rq.cron:CronScheduler", "register load_config_from_file", "overridden: entries of the shared timetable"),
    ("rq.cron:CronScheduler", "enqueue_jobs calculate_sleep_interval", "overridden: publishes each slot once"),
    ("rq.cron:CronScheduler", "heartbeat save", "overridden: goes on when Redis does not answer"),
    ("rq.cron:CronScheduler", "save_jobs_data", "overridden: the same", "<2.12"),
    ("rq.cron:CronJob", "job_options queue_name func args kwargs", "the job of a slot"),
    ("rq.cron:CronJob", "job_history_key", "RQ's list of the jobs that a cron job has had", ">=2.11"),
    (
        "rq.cron",
        "cron_job_registry DEFAULT_CRON_JOB_HISTORY_LIMIT DEFAULT_CRON_JOB_HISTORY_TTL",
        "the same",
        ">=2.11",
    ),
)

ALL = (*JOBS, *QUEUES, *WORKERS, *CRON)


def require_names(used: tuple[Used, ...]) -> None:
    require(used, TESTED)
