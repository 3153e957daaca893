"""The log of a server process: standard error or a file, and syslog besides; levels that CONFIG SET changes.

A file that was moved away is opened anew with the next line, and on SIGHUP.
"""

from __future__ import annotations

import logging
from logging.handlers import SysLogHandler, WatchedFileHandler
from pathlib import Path
from typing import Final

from millstream.errors import ConfigError
from millstream.printable import LineFormatter
from millstream.server.config.settings import Config

logger = logging.getLogger(__name__)

LEVELS: Final = {
    b"debug": logging.DEBUG,
    b"verbose": logging.DEBUG,
    b"notice": logging.INFO,
    b"warning": logging.WARNING,
    b"nothing": logging.CRITICAL + 1,
}
_SYSLOG: Final = Path("/dev/log")
_LINE: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class ServerLog:
    """The handlers of the root logger, as the settings want them."""

    def __init__(self, config: Config, syslog: Path = _SYSLOG) -> None:
        """Log as the settings say from now on. Raises ConfigError when the file or syslog cannot be had."""
        self._config = config
        self._main = _main_handler(config)
        handlers = [self._main]
        if config.is_on("syslog-enabled"):
            handlers.append(_syslog_handler(config, syslog))
        root = logging.getLogger()
        root.handlers[:] = handlers
        self.follow("loglevel")

    def follow(self, name: str) -> None:
        """Take over a setting that has changed."""
        if name == "loglevel":
            logging.getLogger().setLevel(LEVELS[self._config["loglevel"]])

    def reopen(self) -> None:
        """Open the log file anew: it may have been moved away."""
        if isinstance(self._main, WatchedFileHandler):
            self._main.acquire()
            try:
                self._main.flush()
                self._main.reopenIfNeeded()
            finally:
                self._main.release()
            logger.info("The log file was opened again")


def _main_handler(config: Config) -> logging.Handler:
    path = config["logfile"].decode("utf-8", "surrogateescape")
    try:
        handler = WatchedFileHandler(path) if path else logging.StreamHandler()
    except OSError as error:
        raise ConfigError(f"logfile {path}: {error.strerror}") from error
    handler.setFormatter(LineFormatter(_LINE))
    return handler


def _syslog_handler(config: Config, path: Path) -> logging.Handler:
    if not path.is_socket():
        raise ConfigError(f"syslog-enabled: there is no {path} on this machine")
    facility = SysLogHandler.facility_names[config["syslog-facility"].decode()]
    try:
        handler = SysLogHandler(str(path), facility)
    except OSError as error:
        raise ConfigError(f"syslog-enabled: {path}: {error.strerror}") from error
    handler.ident = config["syslog-ident"].decode("utf-8", "replace") + ": "
    handler.setFormatter(LineFormatter("%(levelname)s %(name)s: %(message)s"))
    return handler
