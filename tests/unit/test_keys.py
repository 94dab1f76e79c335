"""A call becomes a key: what shares one, what never does, and what is refused."""

from __future__ import annotations

import inspect
import pathlib
import re
import subprocess
import sys
from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal, localcontext
from enum import Enum, Flag, IntEnum
from typing import Any, Optional
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from taskguard.errors import ConfigurationError, KeyArgumentError
from taskguard.keys.canonical import DEEPEST, canonical
from taskguard.keys.choice import parse_key
from taskguard.keys.maker import KeyMaker, differing, is_of_another_call, space_of
from taskguard.keys.signatures import fence_parameter, signature_of, takes_fence

# No deadline: a busy machine is not a wrong digest. No database: a failure prints what it needs to be seen again.
thorough = settings(deadline=None, database=None)


class Fence:
    """Stands in for the real one: it is known by its name."""


class Unreadable:
    """A callable that hides its parameters, as some built-in ones do."""

    __signature__ = "?"

    def __call__(self, *args, **kwargs):
        return args[0]


def order(a, b=2, *, c=None):
    """The task of most tests."""


def maker(function=order, by=None, space="orders"):
    return KeyMaker(space, signature_of(function), by)


def key(function, by, *args, **kwargs):
    return maker(function, by)(args, kwargs)


# -- the shape of a key ------------------------------------------------------------------------------------------


def test_a_key_is_its_space_the_version_of_the_digest_and_128_bits():
    assert re.fullmatch(r"orders:1:[0-9a-f]{32}", maker()((1,), {}))


def test_two_spaces_do_not_share_a_key():
    assert maker(space="orders")((1,), {}) != maker(space="refunds")((1,), {})


def test_a_space_without_a_name_is_refused():
    with pytest.raises(ConfigurationError, match="key_space="):
        maker(space="")


@pytest.mark.parametrize("by", ["order", ("order", "currency"), "{order}:{currency}"])
def test_who_looks_for_a_key_need_not_know_what_it_is_not_made_of(by):
    def charge(order, cents, /, currency="EUR", *, note): ...

    found = maker(charge, by)

    assert found.by_hand((1,), {}) == found((1, 500), {"note": "x"})
    assert found.by_hand((1,), {"currency": "USD"}) == maker(charge, by)((1, 7), {"currency": "USD", "note": ""})
    with pytest.raises(TypeError, match="missing a required argument: 'order'"):
        found.by_hand((), {})
    with pytest.raises(TypeError, match="unexpected keyword argument 'cent'"):
        found.by_hand((1,), {"cent": 500})


@pytest.mark.parametrize("by", [None, lambda order, cents: order])
def test_of_a_key_that_may_be_made_of_all_arguments_none_is_left_out(by):
    def charge(order, cents): ...

    found = maker(charge, by)

    assert found.by_hand((1, 500), {}) == found((1, 500), {})
    with pytest.raises(TypeError, match="missing a required argument: 'cents'"):
        found.by_hand((1,), {})


def test_a_maker_cannot_be_changed():
    with pytest.raises(AttributeError):
        maker().space = "others"


# -- binding -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((1,), {}), ((), {"a": 1}), ((1, 2), {}), ((1,), {"b": 2}), ((), {"c": None, "b": 2, "a": 1})],
)
def test_every_spelling_of_a_call_gives_one_key(args, kwargs):
    assert maker()(args, kwargs) == maker()((1, 2), {"c": None})


@thorough
@given(st.integers(), st.text(), st.booleans(), st.permutations(["a", "b", "c"]), st.integers(0, 2))
def test_no_spelling_matters(a, b, c, order_of_names, positional):
    values = {"a": a, "b": b, "c": c}
    args = [values.pop(name) for name in ("a", "b")[:positional]]
    kwargs = {name: values[name] for name in order_of_names if name in values}

    assert maker()(args, kwargs) == maker()((a, b), {"c": c})


def test_values_that_change_places_give_another_key():
    assert maker()((1, 2), {}) != maker()((2, 1), {})


def test_extra_arguments_are_part_of_the_call():
    def task(a, *args, **kwargs): ...

    assert len({maker(task)(a, k) for a, k in [((1,), {}), ((1, 2), {}), ((1,), {"x": 2}), ((1, 2), {"x": 2})]}) == 4


def test_the_order_of_extra_keywords_does_not_matter():
    def task(**kwargs): ...

    assert maker(task)((), {"x": 1, "y": 2}) == maker(task)((), {"y": 2, "x": 1})


def test_a_positional_parameter_and_an_extra_keyword_of_its_name_are_two_values():
    def task(a, /, **kwargs): ...

    assert maker(task)((1,), {"a": 2}) != maker(task)((2,), {"a": 1})


@pytest.mark.parametrize(("args", "kwargs"), [((), {}), ((1, 2, 3), {}), ((1,), {"d": 1}), ((1,), {"a": 1})])
def test_a_call_that_python_refuses_is_refused_as_python_does(args, kwargs):
    with pytest.raises(TypeError) as caught:
        maker()(args, kwargs)

    assert not isinstance(caught.value, KeyArgumentError)


# -- the signature of a task -------------------------------------------------------------------------------------


def names(function, **options):
    return list(signature_of(function, **options).parameters)


def test_a_parameter_named_fence_is_not_the_callers():
    assert names(lambda a, fence, b: None) == ["a", "b"]


@pytest.mark.parametrize(
    "annotation",
    [Fence, "Fence", "taskguard.Fence", "tg.Fence", "'Fence'", "Fence | None", Fence | None, Optional[Fence]],  # noqa: UP045
    ids=str,
)
def test_a_parameter_annotated_as_a_fence_is_not_the_callers(annotation):
    def task(a, guard): ...

    task.__annotations__ = {"guard": annotation}

    assert names(task) == ["a"]


@pytest.mark.parametrize("annotation", ["Defence", "FenceLike", list[Fence], int, inspect.Parameter.empty], ids=str)
def test_no_other_annotation_is_taken_for_a_fence(annotation):
    parameter = inspect.Parameter("guard", inspect.Parameter.KEYWORD_ONLY, annotation=annotation)

    assert not takes_fence(parameter)


@pytest.mark.parametrize(
    ("function", "name"),
    [(lambda a, fence: None, "fence"), (lambda a: None, None), (Unreadable(), None)],
    ids=["named", "none", "unreadable"],
)
def test_the_fence_goes_to_the_parameter_of_its_name(function, name):
    assert fence_parameter(function) == name


def test_the_fence_goes_to_the_parameter_annotated_so_rather_than_named_so():
    def mend(fence: str, guard: Fence): ...

    assert fence_parameter(mend) == "guard"


def test_a_bound_task_has_its_first_parameter_filled():
    assert names(lambda self, a: None, bound=True) == ["a"]


def test_a_bound_task_may_take_itself_among_its_args():
    assert names(lambda *args: None, bound=True) == ["args"]


def test_a_bound_task_without_parameters_is_refused():
    with pytest.raises(ConfigurationError, match="write self"):
        signature_of(lambda: None, bound=True)


def test_a_function_whose_parameters_cannot_be_read_is_refused():
    with pytest.raises(ConfigurationError, match="wrap it in a plain function"):
        signature_of(Unreadable())


# -- choosing by path --------------------------------------------------------------------------------------------


@dataclass
class User:
    id: Any
    address: Any = None


def send(user, day=None, **options): ...


def report(tenant, day, user=None): ...


def test_only_the_chosen_arguments_matter():
    assert key(order, "a", 1, 2) == key(order, "a", 1, 3)
    assert key(order, "a", 1) != key(order, "a", 2)


def test_one_name_and_a_tuple_of_it_choose_the_same():
    assert key(order, "a", 1) == key(order, ("a",), 1) == key(order, ["a"], 1)


def test_the_order_of_the_chosen_matters():
    assert key(order, ("a", "b"), 1, 2) == key(order, ("b", "a"), 2, 1)
    assert key(order, ("a", "b"), 1, 2) != key(order, ("b", "a"), 1, 2)


def test_functions_that_share_a_space_may_name_their_parameters_differently():
    assert key(lambda order_id: None, "order_id", 7) == key(lambda order, cents: None, "order", 7, 100)


def test_a_path_walks_attributes():
    assert key(send, "user.id", User(1, "x")) == key(send, "user.id", User(1, "y"))
    assert key(send, "user.id", User(1)) != key(send, "user.id", User(2))


def test_a_path_walks_mappings_and_attributes_alike():
    assert key(send, "user.address.city", User(1, {"city": "Rome"})) == key(
        send, "user.address.city", {"address": {"city": "Rome"}}
    )


def test_a_mappings_own_methods_are_not_its_keys():
    with pytest.raises(KeyArgumentError, match="has no 'items'"):
        key(send, "user.items", {"id": 1})


def test_a_path_leads_into_extra_keywords():
    assert key(send, "options.tenant", 1, tenant="a") != key(send, "options.tenant", 1, tenant="b")


def test_looking_for_a_part_does_not_change_the_argument():
    given_by_caller = defaultdict(int)

    with pytest.raises(KeyArgumentError):
        key(send, "user.id", given_by_caller)

    assert given_by_caller == {}


@pytest.mark.parametrize("user", [{"name": "x"}, User, None, 5], ids=repr)
def test_a_part_that_is_missing_in_a_call_is_named_with_the_way_out(user):
    with pytest.raises(KeyArgumentError, match="pass one that has it with every call") as caught:
        key(send, ("user.nick", "day"), user)

    assert caught.value.argument == "user.nick"


def test_a_parameter_that_the_function_lacks_is_refused_at_once():
    with pytest.raises(
        ConfigurationError, match=r"names 'order'.* the parameters to choose from are: tenant, day, user"
    ):
        maker(report, "order.id")


@pytest.mark.parametrize("by", ["dya", ("user", "dya"), "{user}:{dya}"])
def test_the_nearest_parameter_is_suggested(by):
    with pytest.raises(ConfigurationError, match=r"user, day, options; did you mean 'day'\?"):
        maker(send, by)


def test_what_may_be_in_the_extra_keywords_is_to_be_looked_for_there():
    with pytest.raises(ConfigurationError, match=r"write 'options\.tenant'"):
        maker(send, "tenant")


def test_a_function_without_parameters_has_nothing_to_choose():
    with pytest.raises(ConfigurationError, match="leave key= out"):
        maker(lambda: None, "a")


@pytest.mark.parametrize("by", ["", ".", "a.", ".a", "a..b", "a b", "a[0]", ("a", "")])
def test_what_is_not_a_path_is_refused_with_an_example(by):
    with pytest.raises(ConfigurationError, match=r'"order\.id"'):
        parse_key(by)


@pytest.mark.parametrize("by", [(), [], 5, ("a", 5), {"a"}, b"a", True], ids=repr)
def test_what_chooses_nothing_is_refused_with_all_that_can_be_written(by):
    with pytest.raises(ConfigurationError, match=r"a tuple of names, a template .*, or a function"):
        parse_key(by)


# -- choosing by template ----------------------------------------------------------------------------------------


def test_a_template_chooses_what_it_names():
    assert key(report, "{tenant}:{day}", "a", 1, 5) == key(report, "{tenant}:{day}", "a", 1, 6)


def test_a_template_keeps_its_values_apart():
    assert key(report, "{tenant}:{day}", "a:b", "c") != key(report, "{tenant}:{day}", "a", "b:c")


def test_a_template_keeps_the_types_of_its_values():
    assert key(report, "{day}", "a", 1) != key(report, "{day}", "a", "1")


def test_the_literal_part_of_a_template_matters():
    assert key(report, "daily {day}", "a", 1) != key(report, "hourly {day}", "a", 1)


def test_a_template_may_name_a_path():
    assert key(report, "{user.id}", "a", 1, User(7)) == key(report, "{user.id}", "b", 2, {"id": 7})


def test_doubled_braces_are_literal():
    assert key(report, "{{{day}}}", "a", 1) == key(report, "{{{day}}}", "b", 1)


@pytest.mark.parametrize("template", ["{}", "{0}", "{tenant}:{}"])
def test_a_field_without_a_name_is_refused(template):
    with pytest.raises(ConfigurationError, match="write its name in the braces"):
        parse_key(template)


@pytest.mark.parametrize("template", ["{day!r}", "{day:%Y}", "{day:{width}}"])
def test_formatting_is_refused(template):
    with pytest.raises(ConfigurationError, match=r"write \{day\} alone"):
        parse_key(template)


@pytest.mark.parametrize("template", ["{", "}", "{day", "day}"])
def test_a_broken_template_is_refused_with_an_example(template):
    with pytest.raises(ConfigurationError, match=r"\{tenant\}:\{day\}"):
        parse_key(template)


def test_a_template_that_names_nothing_is_refused():
    with pytest.raises(ConfigurationError, match="write one in braces"):
        parse_key("{{day}}")


def test_a_template_path_with_brackets_is_refused():
    with pytest.raises(ConfigurationError, match="dots for what is inside"):
        parse_key("{day[0]}")


# -- choosing by function ----------------------------------------------------------------------------------------


def test_a_function_chooses_by_what_it_returns():
    by = lambda tenant, day, user: day // 7  # noqa: E731

    assert key(report, by, "a", 14) == key(report, by, "b", 15)
    assert key(report, by, "a", 14) != key(report, by, "a", 21)


def test_a_function_is_called_with_the_defaults_filled_in():
    seen = []

    key(order, lambda a, b, *, c: seen.append((a, b, c)), 1)

    assert seen == [(1, 2, None)]


def test_a_function_that_returns_a_tuple_shares_its_keys_with_paths():
    assert key(report, lambda t, d, u: (t, d), "a", 1) == key(report, ("tenant", "day"), "a", 1)


def test_what_a_function_returns_must_have_a_stable_form():
    with pytest.raises(KeyArgumentError) as caught:
        key(report, lambda t, d, u: [object()], "a", 1)

    assert caught.value.argument == "key()[0]"


@pytest.mark.parametrize("by", [lambda: 1, lambda a: 1, lambda a, b: 1, lambda a, b, *, d: 1], ids=inspect.signature)
def test_a_function_that_cannot_be_called_like_the_task_is_refused_at_once(by):
    with pytest.raises(ConfigurationError, match=r"task takes \(a, b=2, \*, c=None\); write it with the task's"):
        maker(order, by)


@pytest.mark.parametrize("by", [lambda *args, **kw: 1, lambda x, y, *, c: 1, lambda a, b, c=1: 1, Unreadable()])
def test_a_function_that_may_be_called_like_the_task_is_taken(by):
    assert maker(order, by).by is by


def test_a_function_for_a_task_with_any_arguments_is_taken():
    assert key(lambda *args: None, lambda tenant, day: day, "a", 1) == key(lambda *args: None, lambda t, d: d, "b", 1)


# -- the callers own key, and the payload ------------------------------------------------------------------------


def test_a_callers_own_key_is_a_key_of_the_space():
    assert re.fullmatch(r"orders:1:[0-9a-f]{32}", maker().explicit("9f1c"))


def test_a_callers_own_key_is_never_that_of_a_call():
    def task(a): ...

    assert maker(task).explicit("x") not in {key(task, by, "x") for by in (None, "a", "{a}", lambda a: a)}


def test_two_keys_of_callers_are_two_keys():
    assert maker().explicit("a") != maker().explicit("b")


@pytest.mark.parametrize("wrong", ["", None, 5])
def test_a_callers_own_key_is_text(wrong):
    with pytest.raises(KeyArgumentError, match="a str that is not empty"):
        maker().explicit(wrong)


def test_the_payload_covers_what_the_key_leaves_out():
    by_a = maker(order, "a")

    assert by_a((1, 2), {}) == by_a((1, 3), {})
    assert by_a.payload((1, 2), {}) != by_a.payload((1, 3), {})


def test_what_has_no_stable_form_is_in_the_payload_by_its_type():
    class Opaque: ...

    by_a = maker(order, "a")

    assert by_a.payload((1, Opaque()), {}) == by_a.payload((1, Opaque()), {})
    assert by_a.payload((1, Opaque()), {}) != by_a.payload((1, object()), {})
    assert by_a.payload((1, Opaque()), {}) != by_a.payload((2, Opaque()), {})
    assert by_a.payload((1, [Opaque()]), {}) == by_a.payload((1, [Opaque(), 2]), {})


def test_the_payload_is_the_same_for_every_spelling():
    assert maker().payload((1,), {}) == maker().payload((), {"b": 2, "a": 1})


# -- the canonical form: what is one value -----------------------------------------------------------------------

Point = namedtuple("Point", "x y")


class Colour(Enum):
    RED = 1
    ALSO_RED = RED
    BLUE = 2


class Number(IntEnum):
    ONE = 1


class Access(Flag):
    READ = 1
    WRITE = 2


class Text(str):
    def __str__(self):
        return "?"

    def __len__(self):
        return 99


class Count(int):
    def __format__(self, spec):
        return "?"


class Amount(float):
    def __repr__(self):
        return "?"


class Moment(datetime):
    def __sub__(self, other):
        raise NotImplementedError


@dataclass
class Line:
    sku: str
    count: int = 1
    cache: Any = field(default=None, compare=False)


@dataclass
class Row:
    sku: str
    count: int = 1


UTC = timezone.utc
ROME = ZoneInfo("Europe/Rome")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([1, [2]], (1, (2,))),
        (Point(1, 2), [1, 2]),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"a": 1}, OrderedDict(a=1)),
        ({3, 1, 2}, frozenset([2, 3, 1])),
        (b"ab", bytearray(b"ab")),
        (0.0, -0.0),
        (Decimal("1.50"), Decimal("1.5")),
        (Decimal("100"), Decimal("1E+2")),
        (Decimal("0.00"), Decimal("-0")),
        ("?", Text("?")),
        (7, Count(7)),
        (1.5, Amount(1.5)),
        (datetime(2024, 1, 1, tzinfo=UTC), Moment(2024, 1, 1, tzinfo=UTC)),
        (Colour.RED, Colour.ALSO_RED),
        (datetime(2024, 1, 1, 12, tzinfo=UTC), datetime(2024, 1, 1, 13, tzinfo=ROME)),
        (time(12, tzinfo=UTC), time(13, tzinfo=timezone(timedelta(hours=1)))),
        (timedelta(days=1), timedelta(hours=24)),
        (UUID(int=5), UUID(str(UUID(int=5)))),
        (pathlib.PurePosixPath("/a/b"), pathlib.PurePosixPath("/a//./b/")),
        (pathlib.PureWindowsPath("C:/A"), pathlib.PureWindowsPath("c:\\a")),
        (Line("x"), Line("x", 1)),
        (Line("x", cache=1), Line("x", cache=object())),
        (datetime(2024, 10, 27, 2, fold=0), datetime(2024, 10, 27, 2, fold=1)),
    ],
)
def test_equal_values_have_one_form(one, other):
    assert canonical(one) == canonical(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Colour.RED, 1),
        (Colour.RED, Colour.BLUE),
        (Number.ONE, 1),
        (Access.READ, Access.READ | Access.WRITE),
        (Access.READ, 1),
        ({1: 1}, {"1": 1}),
        ({"a": {}}, {"a": []}),
        ({1, 2}, [1, 2]),
        (set(), {}),
        ([[1], 2], [1, [2]]),
        (["a", "b"], ["ab"]),
        ("1", b"1"),
        (Line("x"), Row("x")),
        (Line("x"), {"sku": "x", "count": 1}),
        (datetime(2024, 1, 1), datetime(2024, 1, 1, tzinfo=UTC)),
        (datetime(2024, 1, 1), date(2024, 1, 1)),
        (datetime(2024, 10, 27, 2, fold=0, tzinfo=ROME), datetime(2024, 10, 27, 2, fold=1, tzinfo=ROME)),
        (time(12), time(12, tzinfo=UTC)),
        (time(12), timedelta(hours=12)),
        (UUID(int=5), str(UUID(int=5))),
        (pathlib.PurePosixPath("a"), "a"),
        (pathlib.PurePosixPath("a"), pathlib.PurePosixPath("A")),
        (pathlib.PurePosixPath("a"), pathlib.PureWindowsPath("a")),
        (Decimal(1), 1),
        (Decimal("1E+2"), Decimal("1E+3")),
        ("\ud800\udc00", "\U00010000"),
        (10**5000, 10**5000 + 1),
    ],
    ids=lambda value: type(value).__name__,  # the same in every process, whatever a set's order or an object's address
)
def test_values_that_differ_have_two_forms(one, other):
    assert canonical(one) != canonical(other)


LOOK_ALIKES = [1, "1", 1.0, True, None, b"1", Decimal(1), [1], {1}, {1: 1}, {"1": 1}, "None", "True", [], {}, set(), ""]


def test_no_two_types_share_a_form():
    assert len({canonical(value) for value in LOOK_ALIKES}) == len(LOOK_ALIKES)


def test_decimals_are_compared_in_full_whatever_the_context():
    long = Decimal("1." + "0" * 60 + "1")

    with localcontext() as context:
        context.prec = 3
        assert canonical(long) != canonical(Decimal(1))


@pytest.mark.parametrize("zone", [timezone(timedelta(hours=14)), timezone(timedelta(hours=-12))], ids=str)
@pytest.mark.parametrize("moment", [datetime.min, datetime.max], ids=str)
def test_the_ends_of_the_calendar_have_a_form_in_every_zone(moment, zone):
    assert canonical(moment.replace(tzinfo=zone)).startswith("aware:")


# -- the canonical form, over many values ------------------------------------------------------------------------

SYNTAX = st.text("[]{}<>:;01insrt", max_size=6)
"""Text that looks like the form itself."""

scalars = st.one_of(
    st.sampled_from([0, 1, -1, True, False, None, 0.0, -0.0, 1.0, "", "1", b"", b"1", Decimal(0), Decimal("1.0")]),
    SYNTAX,
    st.text(max_size=3),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.binary(max_size=3),
    st.decimals(allow_nan=False, allow_infinity=False),
    st.dates(),
    st.datetimes(),
    st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=2))])),
    st.times(),
    st.timedeltas(),
    st.uuids(),
)
hashable = st.recursive(scalars, lambda inner: st.tuples(inner) | st.frozensets(inner, max_size=2), max_leaves=3)


def containers(inner):
    return st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(hashable, inner, max_size=3),
        st.sets(hashable, max_size=3),
        st.builds(Line, inner, inner),
        st.builds(Row, inner, inner),
    )


values = st.recursive(scalars, containers, max_leaves=8)


def same(one, other):
    """Equal in type and value, with the equalities that a queue forces on us; knows nothing of the canonical form."""
    for kind, alike in KINDS:
        if isinstance(one, kind) or isinstance(other, kind):
            return isinstance(one, kind) and isinstance(other, kind) and alike(one, other)
    return type(one) is type(other) and one == other


def same_items(one, other):
    return len(one) == len(other) and all(map(same, one, other))


def same_members(one, other):
    return len(one) == len(other) and all(any(same(a, b) for b in other) for a in one)


def same_fields(one, other):
    return type(one) is type(other) and same_items((one.sku, one.count), (other.sku, other.count))


KINDS = [
    ((list, tuple), same_items),
    ((set, frozenset), same_members),
    (dict, lambda one, other: same_members(list(one.items()), list(other.items()))),
    ((Line, Row), same_fields),
]


def respelled(value):
    """The same value, written in another way wherever there is one."""
    if isinstance(value, (list, tuple)):
        return type(value)(map(respelled, value)) if len(value) % 2 else tuple(map(respelled, value))
    if isinstance(value, dict):
        return {respelled(name): respelled(value[name]) for name in reversed(value)}
    if isinstance(value, (set, frozenset)):
        return frozenset(sorted(map(respelled, value), key=repr))
    if isinstance(value, (Line, Row)):
        return type(value)(respelled(value.sku), respelled(value.count))
    if isinstance(value, float):
        return value or -value
    if isinstance(value, datetime) and value.tzinfo:
        return value.replace(tzinfo=timezone(value.utcoffset()))
    return value


@thorough
@given(values, values)
def test_one_form_means_one_value(one, other):
    assert (canonical(one) == canonical(other)) == same(one, other)


@thorough
@given(st.data(), st.integers(1, 3))
def test_one_form_means_one_value_among_look_alikes(data, size):
    look_alikes = st.recursive(st.sampled_from(["1", 1, 1.0, True, None]) | SYNTAX, containers, max_leaves=size)
    one, other = data.draw(look_alikes), data.draw(look_alikes)

    assert (canonical(one) == canonical(other)) == same(one, other)


@thorough
@given(values)
def test_another_spelling_of_a_value_has_the_same_form(value):
    again = respelled(value)

    assert same(value, again)
    assert canonical(value) == canonical(again)


@thorough
@given(st.lists(values, max_size=3), st.lists(values, max_size=3))
def test_no_form_begins_another(one, other):
    assume(not same(one, other))
    longer, shorter = canonical(one), canonical(other)

    assert not longer.startswith(shorter)


# -- pydantic ----------------------------------------------------------------------------------------------------


@pytest.fixture(params=["pydantic", "pydantic.v1"])
def pydantic(request):
    if request.param == "pydantic.v1" and sys.version_info >= (3, 14):
        pytest.skip("pydantic.v1 does not work on this Python")
    return pytest.importorskip(request.param)


def test_equal_models_have_one_form(pydantic):
    model = pydantic.create_model("Order", id=(int, ...), lines=(list[int], []))

    assert canonical(model(id=1)) == canonical(model(lines=[], id="1"))
    assert canonical(model(id=1)) != canonical(model(id=1, lines=[1]))


def test_models_of_two_classes_have_two_forms(pydantic):
    order, refund = (pydantic.create_model(name, id=(int, ...)) for name in ("Order", "Refund"))

    assert canonical(order(id=1)) != canonical(refund(id=1))


def test_the_extra_fields_of_a_model_matter(pydantic):
    class Open(pydantic.BaseModel):
        if pydantic.__name__ == "pydantic":
            model_config = {"extra": "allow"}
        else:

            class Config:
                extra = "allow"

    assert canonical(Open(a=1)) != canonical(Open(a=2))


def test_what_has_no_form_inside_a_model_is_named_with_its_field(pydantic):
    model = pydantic.create_model("Order", handle=(Any, ...))

    with pytest.raises(KeyArgumentError) as caught:
        canonical(model(handle=object()), "order")

    assert caught.value.argument == "order.handle"


def test_keys_are_made_without_importing_pydantic():
    program = "import sys, taskguard.keys, taskguard.protocol.policy; sys.exit('pydantic' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", program], cwd=pathlib.Path(__file__).parents[2]).returncode == 0


# -- what has no form --------------------------------------------------------------------------------------------


class Finer(datetime):
    nanosecond = 5


class FinerDelta(timedelta):
    nanoseconds = 5


def endless():
    value: list[Any] = []
    value.append(value)
    return value


def endless_mapping():
    value: dict[str, Any] = {}
    value["self"] = value
    return value


def nested(levels):
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "place", "problem"),
    [
        (object(), "", "type object"),
        (User, "", "type type"),
        (len, "", "builtin_function_or_method"),
        (1j, "", "type complex"),
        (range(3), "", "type range"),
        (memoryview(b""), "", "type memoryview"),
        (Fence(), "", f"type {__name__}.Fence"),
        ([1, 2, object()], "[2]", "type object"),
        ({"lines": [1, {"x": object()}]}, "['lines'][1]['x']", "type object"),
        ({1: object()}, "[1]", "type object"),
        ({(1, object()): 1}, ".keys()[1]", "type object"),
        ({object()}, "{...}", "type object"),
        (Line("x", [object()]), ".count[0]", "type object"),
        (float("nan"), "", "the float nan"),
        ([float("-inf")], "[0]", "the float -inf"),
        (Decimal("NaN"), "", "the Decimal NaN"),
        (Decimal("sNaN"), "", "the Decimal sNaN"),
        (Decimal("-Infinity"), "", "the Decimal -Infinity"),
        (time(12, tzinfo=ROME), "", "needs a date"),
        (Finer(2024, 1, 1), "", "finer than a microsecond"),
        (FinerDelta(1), "", "finer than a microsecond"),
        (endless(), "[0]" * 8 + "...", "contains itself"),
        (endless_mapping(), "['self']" * 8 + "...", "contains itself"),
        (nested(DEEPEST + 1), "[0]" * 8 + "...", f"more than {DEEPEST} levels deep"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_has_no_stable_form_is_refused_with_its_place_and_the_reason(value, place, problem):
    with pytest.raises(KeyArgumentError, match=re.escape(problem)) as caught:
        maker(lambda order: None)((value,), {})

    assert caught.value.argument == "order" + place


def test_the_refusal_says_what_to_do():
    with pytest.raises(KeyArgumentError, match="choose other arguments with key="):
        maker()((object(),), {})


def test_a_refused_argument_that_is_not_chosen_does_not_matter():
    assert key(order, "a", 1, object()) == key(order, "a", 1, object())


def test_the_deepest_value_has_a_form():
    assert canonical(nested(DEEPEST)) == "[" * DEEPEST + "]" * DEEPEST


def test_the_same_value_twice_is_not_a_value_inside_itself():
    part = [1]

    assert canonical([part, part]) == canonical([[1], [1]])


# -- stability ---------------------------------------------------------------------------------------------------

# A change here changes the key of work that is held or remembered right now, and it would be done twice. Where a
# change is needed, it is a new version of the digest, and KeyMaker.all() names both.
for pinned in (Colour, Access, Line):
    pinned.__module__ = "shop"  # however this file was imported

GOLDEN: list[tuple[Any, str]] = [
    (None, "c6f8700582f48c9eb88efe8b87a063ad"),
    (True, "8bbeff3db00dd40152862cbf910a022b"),
    (42, "8e9552cd85421a3e485169e6ada8ce8f"),
    (-(2**70), "67507fd6b891869cc89d726ec57fa75d"),
    (0.1, "f19d2158cf3f0e181598fc08f83c125b"),
    (1e300, "3472c934835535654e2655115acaeb6e"),
    ("caf\u00e9", "2e2e7e880ac7bb5befa9d64bd67b6494"),
    (b"\x00\xff", "261e7d2059b43bffdd0739232c9cb3f0"),
    ([1, "1", [None]], "6893071994f4187bb321b4f1daa4ab61"),
    ({"b": [1], "a": {1: 2}}, "a2960b8a136852068671c7a41089ae29"),
    ({"x", "y", 1}, "f051287dcec3734d06b628535379d6f4"),
    (Decimal("-12.500"), "3474795325c6b0cc47c0076d12820342"),
    (date(2024, 2, 29), "146b54460e781524605d2292ce5032b4"),
    (datetime(2024, 2, 29, 12, 30, 0, 5), "2c3bce7ed7690137750391fc2fc91f50"),
    (datetime(2024, 2, 29, 12, 30, tzinfo=timezone(timedelta(hours=2))), "948fd8c8ff42c01eef2d70420e8bea9b"),
    (time(23, 59, 59, 999999), "2d5ac19c2b7d59ca9d138ceb20ed633f"),
    (time(1, tzinfo=timezone(timedelta(hours=2))), "86ffce7f7c411c7d60596d851b05d673"),
    (timedelta(days=-1, microseconds=1), "69688074d3442fb06887e7156fb025f4"),
    (UUID("12345678-1234-5678-1234-567812345678"), "560ac4c36a153b9bda053360fde4e940"),
    (pathlib.PurePosixPath("/var/log"), "54ff2494d09d96540c73369e19881f2b"),
    (pathlib.PureWindowsPath("C:/Logs"), "82035709d0d62826f7861ed295e50ebb"),
    (Colour.BLUE, "d5d8a41c34babdde4da55fb7bf2d56da"),
    (Access.READ | Access.WRITE, "97fb06e55782c314b23dcca597d539a2"),
    (Line("x", 3), "535ce1f5aca416a0512a182e9cc2abaa"),
]


@pytest.mark.parametrize(("value", "digest"), GOLDEN, ids=[digest for _, digest in GOLDEN])
def test_the_digest_of_a_value_is_as_it_was(value, digest):
    assert maker(lambda value: None, "value")((value,), {}) == f"orders:1:{digest}"


@pytest.mark.parametrize(
    ("by", "digest"),
    [
        (None, "2e7dc086e45fa73862d9e40ef4b02498"),
        ("a", "aa4b3c34cfca60c86e4ff8295c62ac8a"),
        (("a", "b"), "c2d6778e1e0f272d137ee271445f9590"),
        ("{a}/{b}", "c0b95dc091528839d84fe4570a35cdef"),
        ("{{{a}}}", "a20d8ad1d0ab514be11aa003ea5a70cf"),
        (lambda a, b, c: a, "5a3cc6c2235f6a17071c64b28afa5ceb"),
    ],
    ids=["all", "path", "paths", "template", "braces", "function"],
)
def test_the_digest_of_a_call_is_as_it_was(by, digest):
    assert KeyMaker("orders", signature_of(lambda a, b, c=3: None), by)((1, "x"), {}) == f"orders:1:{digest}"


def test_the_digest_of_a_callers_own_key_is_as_it_was():
    assert maker().explicit("9f1c") == "orders:1:4ad80acf061d3f88505698eba8c5d6f5"


def test_the_payload_of_a_call_is_as_it_was():
    assert maker().payload((1,), {}) == "1:eabddca7fbbefea829a1396a666a8e52"


def test_the_form_of_plain_values_is_as_it_was():
    assert canonical([None, True, 255, -1, 1.5, "é", b"\xff", {"a": {1}}]) == (
        "[none;true;int:ff;int:-1;float:1.5;str:1:ébytes:ff;{str:1:a<int:1;>}]"
    )


# -- in what two calls differ ------------------------------------------------------------------------------------


def ordered(number: int, cents: int = 0, *notes: str, **more: object) -> None: ...


def likeness(*args: object, **kwargs: object) -> str:
    return KeyMaker("order", inspect.signature(ordered), "number").likeness(args, kwargs)


@pytest.mark.parametrize(
    ("one", "other", "names"),
    [
        (likeness(1, 500), likeness(number=1, cents=500), ()),
        (likeness(1, 500), likeness(1, 700), ("cents",)),
        (likeness(1), likeness(1, 0, "a;b=c", x=1), ("notes", "more")),
        (likeness(1), "", ()),
        ("shop;other=x:" + likeness(1, 500), "shop;other=x:" + likeness(1, 700), ("cents",)),
        ("shop;:" + likeness(1), "no likeness; at all", ()),
    ],
)
def test_two_likenesses_tell_in_what_two_calls_differ(one: str, other: str, names: tuple[str, ...]):
    assert differing(one, other) == names


def test_calls_that_only_look_alike_when_joined_are_not_alike():
    assert likeness(1, 0, "a", "b") != likeness(1, 0, "a, b")


def test_a_likeness_has_no_value_in_it():
    assert "secret" not in likeness(1, 500, "secret", password="secret")


@pytest.mark.parametrize(
    ("key", "space"),
    [
        ("shop.charge:1:" + "a" * 32, "shop.charge"),
        ("shop.charge:1:" + "a" * 32 + ":job:some:1:" + "b" * 32, "shop.charge"),
        ("rq:shop.charge:1:" + "a" * 32 + ":queue", "rq:shop.charge"),
        ("invoice:42", "invoice:42"),
    ],
)
def test_a_key_tells_its_space(key: str, space: str):
    assert space_of(key) == space


@pytest.mark.parametrize(
    ("mine", "theirs", "differs"),
    [
        ("1:ab", "1:ab", False),
        ("charge:1:ab", "charge:1:ab", False),
        ("charge:1:ab", "refund:1:ab", True),
        ("charge:1:ab", "charge:1:cd", True),
        ("charge:1:ab", "1:ab", False),  # written by a release that named no function of RQ
        ("1:ab", "charge:1:ab", False),
        ("charge:1:ab", "1:cd", True),
        ("shop:charge:1:ab", "charge:1:ab", True),
    ],
)
def test_payloads_under_one_idempotency_key_are_compared_by_what_both_of_them_say(
    mine: str, theirs: str, differs: bool
):
    assert is_of_another_call(mine, theirs) is differs
