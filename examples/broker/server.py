"""The broker's HTTPS side: sessions, nonces used once, and the four steps of the KBS protocol.

A nonce lives for a minute and is gone with the first attestation that names its session, whatever
that says. There is a session only once evidence is authentic. The asker learns that it was refused
and where to look; the reasons are in the broker's log. Rules can be exchanged while it runs. The
rules in force when a session asks for a key decide.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from appliance.attestation import evidence
from appliance.attestation.case import reading
from appliance.attestation.case.terms import ChallengeOutcome
from appliance.attestation.collect.release import BrokerSession
from appliance.attestation.judge.verify import Claims
from appliance.attestation.tpm.judging import validate as tpm_validate
from appliance.attestation.tpm.judging.protection import Challenge
from appliance.attestation.tpm.judging.verify import TpmClaims
from appliance.codec.printable import plain
from appliance.errors import ApplianceError, AuditError, ModelKeyError
from appliance.platforms import PLATFORMS
from appliance.secure.wipe import wipe
from appliance.tls import RELEASE_LABEL, TlsStream, server_context
from examples.broker import jwe, shown
from examples.broker.challenges import Challenges, Taken
from examples.broker.records import Records
from examples.broker.rules import Authentic, ConfigError, DeniedError, Rules

MAX_BODY_BYTES, MAX_SESSIONS = 2 << 20, 256
SESSION_SECONDS, SOCKET_SECONDS = 60, 20
MAX_CHAIN = 8
MAX_REASON = 300  # characters of a reason that may have the peer's own words
ACTIVATION = "tpm-activation"
TEES = {each.kbs: each.name for each in PLATFORMS}


class _RefusedError(Exception):
    """An HTTP status and the words that the asker gets."""

    def __init__(self, status: int, detail: str, *, logged: bool = False) -> None:
        """`logged`: the log has the reason already, which the asker does not get."""
        super().__init__(detail)
        self.status, self.detail, self.logged = status, detail, logged


@dataclass
class _Session:
    """One asker: what it proved."""

    nonce: bytes
    platform: str
    ends: float
    claims: Authentic
    release_key: ec.EllipticCurvePublicKey
    activated: ChallengeOutcome | None
    connection: BrokerSession


class Broker:
    """Sessions and decisions, without HTTP. Safe to call from several threads."""

    def __init__(self, rules: Rules) -> None:
        self._rules, self._sessions, self._lock = rules, dict[str, _Session](), threading.Lock()
        self._challenges = Challenges(rules.shared_secret)
        self._token_key = Ed25519PrivateKey.generate()
        self._records = None if rules.audit is None or rules.audit_key is None else Records(
            rules.audit, rules.audit_key, rules)

    def take(self, rules: Rules) -> None:
        """Decide by other rules from now on. Raises AuditError where that cannot be recorded: then
        the rules stay."""
        if self._records is not None:
            self._records.loaded(rules)
        self._rules = rules
        self.log("rules-loaded", rules=str(len(rules.rules)), sha256=rules.sha256.hex())

    def keep(self, error: ApplianceError) -> None:
        """Report rules that are not taken."""
        self.log("rules-refused", code=error.code, reason=str(error))
        if self._records is not None:
            self._records.refused_rules(error.code)

    def close(self) -> None:
        """End the audit log."""
        if self._records is not None:
            self._records.close()

    def challenge(self, request: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """A new session's id, and its challenge."""
        tee = request.get("tee")
        if request.get("version") != "0.4.0" or tee not in TEES:
            raise _RefusedError(401, "version is not 0.4.0, or tee is not known here")
        asked = None
        if TEES[tee] == "tpm" and isinstance(request.get("extra-params"), dict):
            asked = self._ask(request["extra-params"].get(ACTIVATION))
        name, nonce = self._challenges.make(TEES[tee], asked)
        extra = "" if asked is None else {ACTIVATION: base64.b64encode(asked[0].sent).decode()}
        return name, {"nonce": base64.b64encode(nonce).decode(), "extra-params": extra}

    def _ask(self, given: Any) -> tuple[Challenge, ChallengeOutcome] | None:
        """A challenge to the TPM that announces itself so; None if no rule wants one, or nobody
        knows its maker."""
        try:
            chain = given["chain"]
            if not isinstance(chain, list) or len(chain) > MAX_CHAIN:
                raise ValueError("too many certificates")
            key, certificate, *others = (base64.b64decode(each, validate=True)
                                         for each in (given["key"], given["ek-certificate"], *chain))
            return self._rules.challenge(key, certificate, others)
        except (LookupError, TypeError, ValueError):
            raise _RefusedError(401, f"{ACTIVATION}: not in form") from None
        except ApplianceError as error:
            self.log("unchallenged", code=error.code, reason=error.summary)
            return None

    def attest(self, name: str, message: dict[str, Any], connection: Callable[[bytes], BrokerSession]
               ) -> dict[str, str]:
        """Take evidence once; a session that failed is gone. `connection`: gives the connection
        that the evidence came on, by the nonce."""
        taken = self._challenges.take(name)
        if taken is None:
            with self._lock:
                self._sessions.pop(name, None)
            raise _RefusedError(401, "no session with a nonce that is still good")
        try:
            runtime, given = message["runtime-data"], message["tee-evidence"]["primary_evidence"]
            if runtime["nonce"] != base64.b64encode(taken.nonce).decode():
                raise ValueError("the nonce is another session's")
            key = jwe.public_key(runtime["tee-pubkey"])
            parsed = reading.parse(json.dumps(given).encode())
            answer = answer_in(message["tee-evidence"].get("additional_evidence", ""))
        except (LookupError, TypeError, ValueError, RecursionError, ApplianceError) as error:
            raise _RefusedError(401, f"malformed attestation: {error}") from None
        here = connection(taken.nonce)
        claims = self._believed(taken, parsed, here)
        session = _Session(taken.nonce, taken.platform, time.monotonic() + SESSION_SECONDS, claims, key,
                           self._activated(taken, claims, answer), here)
        with self._lock:
            self._forget()
            while len(self._sessions) >= MAX_SESSIONS:  # a peer goes on at once, so the oldest session has ended
                del self._sessions[next(iter(self._sessions))]
            self._sessions[name] = session
        return {"token": self._token(session)}

    def _activated(self, taken: Taken, claims: Authentic, answer: bytes) -> ChallengeOutcome | None:
        """Return the facts that a TPM's answer shows. None where it was not asked, or did not
        answer."""
        if taken.answer is None or not answer:
            return None
        hardware = next(iter(claims.values())).hardware
        try:
            if not isinstance(hardware, TpmClaims):
                raise _RefusedError(401, "an answer of a TPM beside other evidence")
            certificate, name = tpm_validate.endorsed(hardware)
        except ApplianceError as error:
            self._refuse(error.code, error.summary)
            raise _RefusedError(401, f"the evidence is not accepted ({error.code})", logged=True) from None
        shown = ChallengeOutcome(name, certificate)
        if not hmac.compare_digest(self._challenges.tag(taken.nonce, answer, shown), taken.answer):
            self._refuse("tpm-activation", "ek-activation: the answer is not by the TPM of the EK "
                      "certificate that was announced, or the evidence is of another key")
            raise _RefusedError(401, "the TPM did not open the challenge (tpm-activation)", logged=True)
        return shown

    def _believed(self, taken: Taken, given: evidence.Evidence, here: BrokerSession) -> Authentic:
        """Authentic, for this nonce, and of no other connection; whether it suffices is asked for
        each resource."""
        try:
            claims = self._rules.authentic(given)
        except ApplianceError as error:
            self._refuse(error.code, error.summary)
            raise _RefusedError(401, f"the evidence is not accepted ({error.code})", logged=True) from None
        if any(each.platform != taken.platform for each in claims.values()):
            raise _RefusedError(401, "the evidence is of another kind of machine than was announced")
        if any(each.nonce != taken.nonce for each in claims.values()):
            self._refuse("nonce", "evidence for another nonce")
            raise _RefusedError(401, "the evidence is for another nonce", logged=True)
        if any(each.session is not None and _connection(each) != here for each in claims.values()):
            self._refuse("session", "session: the evidence is of another connection than this one: somebody in between "
                         "passed it on")
            raise _RefusedError(401, "the evidence is of another connection (session)", logged=True)
        return claims

    def resource(self, name: str, resource: str) -> bytes:
        """The JWE of a key, if a rule releases it. Nothing is released that cannot be recorded."""
        with self._lock:
            self._forget()
            session = self._sessions.get(name)
        if session is None:
            raise _RefusedError(401, "attest first: a session is of the broker and the minute that attested it")
        try:
            return self._decided(session, resource)
        except (ModelKeyError, AuditError) as error:
            self.log("unavailable", resource=resource[:128], code=error.code, reason=str(error))
            raise _RefusedError(503, "the key cannot be had now; the broker's log says why", logged=True) from None

    def _decided(self, session: _Session, resource: str) -> bytes:
        try:
            rule = self._rules.release(resource, session.claims, session.nonce, _spki_sha256(session.release_key),
                                           session.activated, session.connection)
        except DeniedError as error:
            self.log("denied", resource=resource[:128], reason=error.summary)
            if self._records is not None:
                self._records.denied(resource, _any(session.claims), error.failed)
            raise _RefusedError(403, "no rule of this broker releases it to this image and policy",
                                logged=True) from None
        document = rule.document()
        try:
            if self._records is not None:
                self._records.released(rule, session.claims[rule.collateral], _spki_sha256(session.release_key))
            self.log("released", resource=resource, policy=_any(session.claims).statement.policy_sha384)
            return jwe.encrypt(document, session.release_key)
        finally:
            wipe(document)

    def _token(self, session: _Session) -> str:
        """An attestation results token (JWT, RFC 7519), which the protocol asks for and this broker
        never takes."""
        now = int(time.time())
        claims = {"iss": "appliance-reference-broker", "iat": now, "exp": now + SESSION_SECONDS,
                  "tee": session.platform}
        parts = [{"alg": "EdDSA", "typ": "JWT"}, claims]
        text = ".".join(jwe.encode(json.dumps(part).encode()) for part in parts)
        return f"{text}.{jwe.encode(self._token_key.sign(text.encode()))}"

    def _refuse(self, code: str, reason: str) -> None:
        """Report evidence that is refused before any rule is asked."""
        self.log("refused", code=code, reason=reason)
        if self._records is not None:
            self._records.count(code)

    def _forget(self) -> None:
        now = time.monotonic()
        for name in [name for name, session in self._sessions.items() if session.ends < now]:
            del self._sessions[name]

    def log(self, event: str, **fields: str) -> None:
        """Write a line."""
        line = json.dumps({"event": event, "time": datetime.now(UTC).isoformat(timespec="seconds"), **fields})
        if self._rules.log is None:
            print(line, file=sys.stderr, flush=True)
        else:
            with self._lock, self._rules.log.open("a", encoding="utf-8") as file:
                file.write(line + "\n")


def _connection(claims: Claims) -> BrokerSession:
    """The connection that a statement says it is of."""
    said = getattr(claims.statement, "broker_spki_sha256", "")
    return BrokerSession(bytes.fromhex(said), claims.session or b"")


def answer_in(additional: str) -> bytes:
    """A TPM's answer in `additional_evidence`; empty if there is none."""
    return bytes.fromhex(json.loads(additional)[ACTIVATION]) if additional else b""


def _any(claims: Authentic) -> Claims:
    """Claims of a session: all say the same, by whatever collateral they are authentic."""
    return next(iter(claims.values()))


def _spki_sha256(key: PublicKeyTypes) -> bytes:
    return hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).digest()


class _Handler(BaseHTTPRequestHandler):
    """Paths, cookies and JSON."""

    protocol_version = "HTTP/1.1"
    timeout = SOCKET_SECONDS
    server: Server
    asked = False  # whether a request came

    def handle(self) -> None:
        """Answer requests until the connection ends, however it does."""
        try:
            super().handle()
        except OSError as error:
            if self.asked:
                self._tell("broken", plain(error.strerror or type(error).__name__, MAX_REASON))

    def finish(self) -> None:
        """Tell the log of a peer that said nothing: it may not trust this broker."""
        super().finish()
        if not self.asked:
            self._tell("silent", "it hung up after the TLS handshake, without a request: an appliance that does not "
                       "trust this certificate does that, and its own diagnostic says why (key-broker-untrusted)")

    def _tell(self, event: str, reason: str) -> None:
        self.server.broker.log(event, peer=str(self.client_address[0]), reason=reason)

    def do_POST(self) -> None:
        """Answer `/kbs/v0/auth` and `/kbs/v0/attest`."""
        self._answer(self._post)

    def do_GET(self) -> None:
        """Answer `/kbs/v0/resource/…`."""
        self._answer(self._get)

    def _post(self) -> tuple[bytes, str | None]:
        message = self._body()
        if self.path == "/kbs/v0/auth":
            name, challenge = self.server.broker.challenge(message)
            return json.dumps(challenge).encode(), f"kbs-session-id={name}; Secure; HttpOnly"
        if self.path == "/kbs/v0/attest":
            return json.dumps(self.server.broker.attest(self._session(), message, self._connection)).encode(), None
        raise _RefusedError(404, "no such path")

    def _connection(self, nonce: bytes) -> BrokerSession:
        """This very connection: our key, and the exporter for the nonce."""
        stream: Any = self.connection
        return BrokerSession(stream.spki_sha256, stream.session.exporter(nonce, RELEASE_LABEL))

    def _get(self) -> tuple[bytes, str | None]:
        prefix = "/kbs/v0/resource/"
        if not self.path.startswith(prefix):
            raise _RefusedError(404, "no such path")
        return self.server.broker.resource(self._session(), self.path.removeprefix(prefix)), None

    def _body(self) -> dict[str, Any]:
        length = self.headers.get("content-length", "")
        if not length.isdecimal() or int(length) > MAX_BODY_BYTES:
            self.close_connection = True
            raise _RefusedError(413, "a body with its length, at most 2 MiB")
        try:
            value = json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise _RefusedError(400, "the body is no JSON object")
        return value

    def _session(self) -> str:
        try:
            return SimpleCookie(self.headers.get("cookie", ""))["kbs-session-id"].value
        except (CookieError, KeyError):
            raise _RefusedError(401, "no cookie kbs-session-id") from None

    def _answer(self, work: Any) -> None:
        cookie: str | None = None
        self.asked = True
        try:
            body, cookie = work()
            status = 200
        except _RefusedError as error:
            status = error.status
            if not error.logged:
                self._tell("refused", f"{status}: {plain(error.detail, MAX_REASON)}")
            body = json.dumps({"type": "https://example.org/kbs/refused", "detail": error.detail}).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        if cookie is not None:
            self.send_header("set-cookie", cookie)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Do nothing: decisions have a log of their own."""

    def log_error(self, format: str, *args: Any) -> None:
        """Log bytes that are not a request."""
        self.asked = True
        self._tell("refused", plain(format % args, MAX_REASON))


class _Stream(TlsStream):
    """A connection, and SHA-256 of the key that was shown on it."""

    spki_sha256 = b""


def _identity(rules: Rules) -> tuple[Any, bytes]:
    """The TLS context of the rules' certificate, and SHA-256 of its key. ConfigError for a
    certificate that no appliance of the rules would trust."""
    chain = shown.read(rules.certificate)
    shown.check(rules.certificate, chain, rules.rules, rules.now())
    return server_context(shown.read_key(rules.private_key, chain), chain), _spki_sha256(chain[0].public_key())


class Server(ThreadingHTTPServer):
    """HTTPS on one address; `url` says which."""

    daemon_threads = True

    def __init__(self, rules: Rules) -> None:
        """ConfigError for certificates that no appliance of the rules would trust."""
        self._identity = _identity(rules)
        self._rules, self._reloading = rules, threading.Lock()
        super().__init__((rules.host, rules.port), _Handler)
        self.broker = Broker(rules)

    def reload(self, read: Callable[[], Rules]) -> bool:
        """Take rules and certificate anew, both or neither: a connection that is open keeps the
        certificate that it has seen. Returns whether they were taken; the log says why not."""
        try:
            with self._reloading:  # of two signals the later one reads last
                rules = read()
                self._require_same_place(rules)
                identity = _identity(rules)
                self.broker.take(rules)
                self._identity, self._rules = identity, rules
        except (ApplianceError, OSError) as error:
            self.broker.keep(error if isinstance(error, ApplianceError) else ConfigError(str(error)))
            return False
        return True

    def _require_same_place(self, rules: Rules) -> None:
        for name in ("host", "port", "log", "audit", "shared_secret"):
            if getattr(rules, name) != getattr(self._rules, name):
                raise ConfigError(f"{name} is another one", hint="start the broker again: only rules, certificate and "
                                  "keys are taken while it runs")

    def server_close(self) -> None:
        """Close the address, and end the audit log."""
        super().server_close()
        self.broker.close()

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Shake hands in the thread of the connection, so that a silent peer stops nobody else."""
        request.settimeout(SOCKET_SECONDS)
        context, spki_sha256 = self._identity
        try:
            secured = _Stream(request, context, server=True)
            secured.spki_sha256 = spki_sha256
        except OSError as error:
            self.broker.log("no-handshake", peer=str(client_address[0]),
                            reason=plain(error.strerror or type(error).__name__, MAX_REASON))
            return
        try:
            super().finish_request(secured, client_address)  # type: ignore[arg-type]  # it reads and writes as a socket does
        finally:
            secured.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report a defect by its class, and nothing else. A broken connection is its peer's
        affair."""
        print(json.dumps({"event": "error", "class": type(sys.exception()).__name__}), file=sys.stderr, flush=True)

    @property
    def spki_sha256(self) -> bytes:
        """SHA-256 of the key that new connections are shown."""
        return self._identity[1]

    @property
    def url(self) -> str:
        """The address on which it listens."""
        host, port = self.server_address[:2]
        return f"https://{host!s}:{port}"
