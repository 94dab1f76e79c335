from __future__ import annotations

import pytest

from tests.upgrade.releases import Releases


@pytest.fixture(scope="session")
def releases(tmp_path_factory: pytest.TempPathFactory) -> Releases:
    return Releases(tmp_path_factory.mktemp("releases"))
