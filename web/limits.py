"""How often something may be tried."""

from flask_limiter import Limiter
from flask_limiter.util import get_remote_address

LOGIN_ATTEMPTS = "10/minute"

limiter = Limiter(get_remote_address, headers_enabled=True, in_memory_fallback_enabled=True)
