"""Given to `rq worker -c`: what a worker imports once, before it forks, and its horses need not import again."""

import benchmarks.rq_guarded_body
import benchmarks.rq_plain_body  # noqa: F401 - imported for what it leaves behind
