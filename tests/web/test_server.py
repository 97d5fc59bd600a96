"""Where the web server listens."""

import pytest

from config.settings import load_settings
from web.server import _Server


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "::", "localhost"])
def test_it_listens_on_the_address_that_is_set_also_of_ip_version_6(host: str) -> None:
    server = _Server(load_settings(web_host=host, web_port=8800))
    assert server.cfg.address == [(host, 8800)]
