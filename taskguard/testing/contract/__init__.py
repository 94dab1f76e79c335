"""The conformance suite of a store: tests for the eight promises of `taskguard.protocol.store.Store`.

Inherit from it in a test class and define five fixtures:

store    a store that is empty, or has a namespace of its own
elapse   elapse(seconds): lets that much time pass on the store's clock (advance a fake one, or sleep)
opener   a picklable callable that opens the same store in another process; None if only one process can use it
wipe     wipe(): deletes all data of the store, as an operator or a broken disk would
restart  restart(): kills the server and starts it again; lambda: None if there is no server

The suite imports no test runner. It works with any that finds `test_` methods and passes fixtures by name.

Each promise has a module of its own here. The helpers of those tests can be imported from here too.
"""

from __future__ import annotations

from taskguard.testing.contract.adoption import Adoption
from taskguard.testing.contract.atomic import AtomicSteps
from taskguard.testing.contract.clock import StoreClock
from taskguard.testing.contract.clock import skewed_clock as skewed_clock
from taskguard.testing.contract.confirmation import Confirmation
from taskguard.testing.contract.growth import Growth
from taskguard.testing.contract.helpers import *  # noqa: F403 - tests of stores import the helpers from here
from taskguard.testing.contract.holders import NewestHolder
from taskguard.testing.contract.lost_replies import LostReplies
from taskguard.testing.contract.publication import Publication
from taskguard.testing.contract.receipts import Receipts
from taskguard.testing.contract.tokens import RisingTokens


class StoreContract(
    AtomicSteps,
    Publication,
    Confirmation,
    RisingTokens,
    NewestHolder,
    LostReplies,
    Receipts,
    Adoption,
    StoreClock,
    Growth,
):
    """Tests of the eight promises. The guard works on every store that passes."""
