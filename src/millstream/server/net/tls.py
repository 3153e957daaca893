"""TLS from the `tls-…` settings: our certificate, and whose certificates a client may show."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Final

from millstream.errors import ConfigError
from millstream.server.config.settings import Config

_VERSIONS: Final = {"tlsv1.2": ssl.TLSVersion.TLSv1_2, "tlsv1.3": ssl.TLSVersion.TLSv1_3}
_CLIENTS: Final = {b"yes": ssl.CERT_REQUIRED, b"optional": ssl.CERT_OPTIONAL, b"no": ssl.CERT_NONE}


def server_context(config: Config) -> ssl.SSLContext:
    """How connections are encrypted; ConfigError names the setting that keeps it from working."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version, context.maximum_version = _versions(config["tls-protocols"].decode())
    _load_certificate(context, config)
    context.verify_mode = _CLIENTS[config["tls-auth-clients"]]
    if context.verify_mode is not ssl.CERT_NONE:
        _load_authorities(context, config)
    if ciphers := config["tls-ciphers"].decode():
        try:
            context.set_ciphers(ciphers)
        except ssl.SSLError as error:
            raise ConfigError(f"tls-ciphers: none of {ciphers!r} is known") from error
    if config.is_on("tls-prefer-server-ciphers"):
        context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    return context


def _versions(text: str) -> tuple[ssl.TLSVersion, ssl.TLSVersion]:
    """The oldest and the newest version that is spoken; 1.2 and later unless told."""
    words = text.lower().split()
    unknown = [word for word in words if word not in _VERSIONS]
    if unknown:
        raise ConfigError(f"tls-protocols: {unknown[0]!r} is not spoken here, only TLSv1.2 and TLSv1.3")
    versions = [_VERSIONS[word] for word in words] or list(_VERSIONS.values())
    return min(versions), max(versions)


def _load_certificate(context: ssl.SSLContext, config: Config) -> None:
    certificate, key = _file(config, "tls-cert-file"), _file(config, "tls-key-file")
    password = config["tls-key-file-pass"]
    try:
        # A password is always given: OpenSSL would ask for a missing one at the terminal.
        context.load_cert_chain(certificate, key, password=lambda: password)
    except (ssl.SSLError, OSError) as error:
        reason = getattr(error, "reason", None) or error
        raise ConfigError(f"tls-cert-file {certificate}, tls-key-file {key}: {reason}") from error


def _load_authorities(context: ssl.SSLContext, config: Config) -> None:
    """Whom to believe who a client is."""
    directory = config["tls-ca-cert-dir"].decode() or None
    file = _file(config, "tls-ca-cert-file") if config["tls-ca-cert-file"] or directory is None else None
    try:
        context.load_verify_locations(file, directory)
    except (ssl.SSLError, OSError) as error:
        reason = getattr(error, "reason", None) or error
        raise ConfigError(f"tls-ca-cert-file {file}, tls-ca-cert-dir {directory}: {reason}") from error


def _file(config: Config, name: str) -> Path:
    path = config[name].decode()
    if not path:
        hint = ", or `tls-auth-clients no`" if name == "tls-ca-cert-file" else ""
        raise ConfigError(f"tls-port needs {name}{hint}")
    if not Path(path).is_file():
        raise ConfigError(f"{name}: there is no file {path}")
    return Path(path)
