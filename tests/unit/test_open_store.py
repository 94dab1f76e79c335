from __future__ import annotations

import subprocess
import sys

import pytest

from taskguard import ConfigurationError, Guard, open_store
from taskguard.stores import _STORES, safe_url


@pytest.mark.parametrize("url", ["", "nonsense", "http://host", "mongodb://host", "host:6379", None, 7])
def test_an_unknown_scheme_is_an_error_that_lists_the_known_ones(url: object):
    with pytest.raises(ConfigurationError, match="sqlite://"):
        open_store(url)  # type: ignore[arg-type]


def test_a_url_is_shown_without_its_secrets():
    assert safe_url("redis://user:s3cr3t@host:6379/0?password=s3cr3t") == "redis://host:6379/0"
    assert safe_url("redis://:p@ss@w0rd@host/0") == "redis://host/0"
    assert safe_url("s3cr3t") == "(not a URL)"


def test_an_unknown_scheme_does_not_show_the_password():
    with pytest.raises(ConfigurationError) as caught:
        open_store("mysql://user:s3cr3t@host/db")
    assert "s3cr3t" not in str(caught.value)


@pytest.mark.parametrize("scheme", sorted({scheme for scheme, (_, extra) in _STORES.items() if extra}))
def test_a_missing_driver_is_an_error_that_names_the_extra(scheme: str):
    program = (
        "import sys; sys.modules.update(redis=None, psycopg=None); "
        "from taskguard import StoreError, open_store\n"
        f"try: open_store('{scheme}://host/0')\n"
        "except StoreError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert f"pip install 'celery-taskguard[{_STORES[scheme][1]}]'" in done.stdout


@pytest.mark.parametrize("namespace", ["", "a\nb"])
def test_a_namespace_that_cannot_be_used_is_refused(namespace: str):
    with pytest.raises(ConfigurationError, match="namespace"):
        open_store("memory://", namespace=namespace)


def test_memory_takes_no_address():
    with pytest.raises(ConfigurationError, match="takes no address"):
        open_store("memory://somewhere")


def test_a_guard_opens_its_store_from_a_url():
    guard = Guard("memory://")

    assert repr(guard) == "Guard(MemoryStore())"
    guard.close()
