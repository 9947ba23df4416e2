"""How much one API key may ask, and one tenant with all its keys: requests a minute, tokens a
minute and a day, on the monotonic clock.

The host owns the wall clock, so no limit reads it. A window slides: in no 60 seconds (or 24 hours)
of monotonic time does a key or a tenant get more than its limit. A request is charged for its
prompt and for all the tokens that it may generate when it is admitted; the rest is given back when
it ends. So no burst of long requests overshoots. Charged counts are the rounded ones, so the
rate-limit headers tell no more than `usage` does.

Counters live in memory. With a state disk they outlive the appliance (quotas.py): what was charged
weighs on for as long as it had left, the time in which the appliance did not run not counted.
Without one they start anew.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from appliance.api.problems import RequestError
from appliance.policy.schema import Tenant

MINUTE, DAY = 60.0, 86400.0
SLOTS = 600  # entries that a window keeps at most; charges of one slot expire together, late rather than early

RESERVED_SHARE = 4  # one place in this many, at most, is kept for tenants who hold none
PARTS = 8    # of a window, into which charges are rounded when they are written down
LAST = PARTS + 1  # parts that a charge weighs on at most: it begins within a slot

Clock = Callable[[], float]


@dataclass(slots=True)
class Charge:
    """An amount that weighs on a window until a time."""

    expires: float
    amount: int


class Window:
    """At most `limit` in any `seconds`; a limit of None charges nothing."""

    def __init__(self, limit: int | None, seconds: float, clock: Clock = time.monotonic) -> None:
        self.limit = limit
        self._seconds = seconds
        self._clock = clock
        self._charges: deque[Charge] = deque()
        self._used = 0
        self.changes = 0  # how often anything was charged or given back

    def under(self, limit: int | None) -> Window:
        """Return the window with another limit: another window where one has none, and so no
        charges."""
        if (limit is None) is not (self.limit is None):
            return Window(limit, self._seconds, self._clock)
        self.limit = limit
        return self

    @property
    def remaining(self) -> int:
        """The amount that may be charged now."""
        self._expire()
        return 0 if self.limit is None else max(0, self.limit - self._used)

    def wait(self, amount: int) -> float:
        """Seconds until `amount` could be charged: 0 now, infinity never."""
        self._expire()
        if self.limit is None or self._used + amount <= self.limit:
            return 0.0
        excess = self._used + amount - self.limit
        for charge in self._charges:
            excess -= charge.amount
            if excess <= 0:
                return max(0.0, charge.expires - self._clock())
        return math.inf

    def charge(self, amount: int) -> Charge:
        """Charge `amount`; `wait` was asked before. The result takes a later refund."""
        slot = max(self._seconds / SLOTS, 1.0)  # of a minute, no shorter than a second
        expires = (math.floor(self._clock() / slot) + 1) * slot + self._seconds
        if self.limit is None:
            return Charge(expires, 0)
        self.changes += 1
        if not self._charges or self._charges[-1].expires < expires:
            self._charges.append(Charge(expires, 0))
        self._charges[-1].amount += amount
        self._used += amount
        return self._charges[-1]

    def refund(self, charge: Charge, amount: int) -> None:
        """Give back a part of a charge; nothing if it has expired meanwhile."""
        self._expire()
        if self.limit is not None and charge.expires > self._clock():
            self.changes += 1
            charge.amount -= amount
            self._used -= amount

    def reset(self) -> float:
        """Seconds until nothing weighs on the window."""
        self._expire()
        return max(0.0, self._charges[-1].expires - self._clock()) if self._used else 0.0

    def left(self, step: int = 1) -> list[tuple[int, int]]:
        """The weights on the window, as pairs (how many `PARTS` of it still, amount): rounded up to
        multiples of `step`, late, never early. `LAST` leaves one pair."""
        self._expire()
        now, sums = self._clock(), dict[int, int]()
        for charge in self._charges:
            parts = math.ceil((charge.expires - now) * PARTS / self._seconds - 1e-9)
            parts = min(-(-parts // step) * step, LAST)
            sums[parts] = sums.get(parts, 0) + charge.amount
        return [(parts, amount) for parts, amount in sorted(sums.items()) if amount > 0]

    def restore(self, left: Iterable[tuple[int, int]]) -> None:
        """Put back what `left` told, into a window on which nothing weighs yet."""
        if self.limit is not None:
            now = self._clock()
            self._charges.extend(Charge(now + parts * self._seconds / PARTS, amount) for parts, amount in sorted(left))
            self._used = sum(charge.amount for charge in self._charges)

    def _expire(self) -> None:
        now = self._clock()
        while self._charges and self._charges[0].expires <= now:
            self._used -= self._charges.popleft().amount


@dataclass(frozen=True)
class Rates:
    """Limits of one API key, or of one tenant; None: no such limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    tokens_per_day: int | None = None


def limits_of(tenants: Iterable[Tenant]) -> dict[str, Rates]:
    """Those of tenants that have some, by name."""
    rates = {each.name: Rates(each.requests_per_minute, each.tokens_per_minute, each.tokens_per_day)
             for each in tenants}
    return {name: each for name, each in rates.items() if each != Rates()}


class Account:
    """The three windows of one API key, or of one tenant."""

    def __init__(self, rates: Rates, clock: Clock = time.monotonic, whose: str = "") -> None:
        """`whose`: words of refusals, after what there is too much of."""
        self._clock, self._whose = clock, whose
        self.requests = Window(rates.requests_per_minute, MINUTE, clock)
        self.minute = Window(rates.tokens_per_minute, MINUTE, clock)
        self.day = Window(rates.tokens_per_day, DAY, clock)

    def serve(self, rates: Rates) -> None:
        """Have these limits from now on. Earlier charges weigh on a limit's successor."""
        self.requests = self.requests.under(rates.requests_per_minute)
        self.minute = self.minute.under(rates.tokens_per_minute)
        self.day = self.day.under(rates.tokens_per_day)

    def admit_request(self) -> None:
        """Charge one request, or refuse it with the time to wait."""
        self.require_request()
        self.requests.charge(1)

    def require_request(self) -> None:
        """Refuse a request for which there is no room, with the time to wait."""
        if (wait := self.requests.wait(1)) > 0:
            raise RequestError("rate_limit_exceeded", f"too many requests{self._whose} in a minute", retry_after=wait)

    def admit_tokens(self, tokens: int) -> Deposit:
        """Charge what a request may use at most, or refuse it with the time to wait."""
        self.require_tokens(tokens)
        windows = self.minute, self.day
        return Deposit(tokens, [(window, window.charge(tokens)) for window in windows])

    def require_tokens(self, tokens: int) -> None:
        """Refuse tokens for which there is no room, with the time to wait."""
        for window, code, period in ((self.minute, "rate_limit_exceeded", "minute"),
                                     (self.day, "insufficient_quota", "day")):
            wait = window.wait(tokens)
            if math.isinf(wait):
                raise RequestError(code, f"the request may take {tokens} tokens, more than the limit{self._whose} of "
                                         f"{window.limit} tokens a {period}: shorten it or lower max_tokens",
                                   retry_after=wait)
            if wait > 0:
                raise RequestError(code, f"too many tokens{self._whose} in a {period}", retry_after=wait)

    def windows(self) -> dict[str, Window]:
        """The windows by name."""
        return {"requests": self.requests, "minute": self.minute, "day": self.day}


@dataclass
class Deposit:
    """Tokens charged ahead for one request."""

    tokens: int
    charges: list[tuple[Window, Charge]]

    def settle(self, used: int) -> None:
        """Give back what was not used; called once, when the request ends however it ends."""
        unused = max(0, self.tokens - used)
        for window, charge in self.charges:
            window.refund(charge, unused)
        self.tokens -= unused


@dataclass(frozen=True)
class Purse:
    """The accounts that pay for a request: its key's, and its tenant's where that has limits. In
    the latter a token counts as often as its price says."""

    key: Account
    tenant: Account | None = None
    prompt_price: int = 1
    answer_price: int = 1

    def admit_request(self) -> None:
        """Charge one request, or refuse it with the time to wait."""
        self.key.require_request()
        if self.tenant is not None:
            self.tenant.admit_request()
        self.key.requests.charge(1)

    def admit_tokens(self, prompt: int, answer: int) -> Callable[[int, int], None]:
        """Charge what a request may use at most, or refuse it with the time to wait. Returns what
        settles it by what prompt and answer used, once it has ended."""
        self.key.require_tokens(prompt + answer)
        own = None if self.tenant is None else self.tenant.admit_tokens(self._price(prompt, answer))
        deposit = self.key.admit_tokens(prompt + answer)

        def settle(prompt: int, answer: int) -> None:
            deposit.settle(prompt + answer)
            if own is not None:
                own.settle(self._price(prompt, answer))

        return settle

    def _price(self, prompt: int, answer: int) -> int:
        return prompt * self.prompt_price + answer * self.answer_price

    def headers(self) -> dict[str, str]:
        """OpenAI's rate-limit headers, for the limits that exist, of the account with less left."""
        found, accounts = dict[str, str](), [self.key, *(() if self.tenant is None else (self.tenant,))]
        for name, windows in (("requests", [each.requests for each in accounts]),
                              ("tokens", [each.minute for each in accounts])):
            bounded = [window for window in windows if window.limit is not None]
            if bounded:
                window = min(bounded, key=lambda each: each.remaining)
                found[f"x-ratelimit-limit-{name}"] = str(window.limit)
                found[f"x-ratelimit-remaining-{name}"] = str(window.remaining)
                found[f"x-ratelimit-reset-{name}"] = f"{math.ceil(window.reset())}s"
        return found


class Accounts:
    """The accounts of all keys, by the SHA-256 of each, and of tenants with limits, by name."""

    def __init__(self, rates: Rates, clock: Clock = time.monotonic) -> None:
        self.rates = rates  # of each key
        self._clock = clock
        self._accounts: dict[bytes, Account] = {}
        self.tenants: dict[str, Account] = {}
        self._gone = 0  # changes of accounts that are forgotten

    def serve(self, tenants: Iterable[Tenant]) -> None:
        """Have these tenants from now on. The accounts of others are forgotten."""
        tenants, before = tuple(tenants), self.changes
        limited, keys = limits_of(tenants), {bytes.fromhex(key) for each in tenants for key in each.api_key_sha256}
        self._accounts = {key: account for key, account in self._accounts.items() if key in keys}
        self.tenants = {name: self.tenants.get(name) or Account(each, self._clock, " of the tenant")
                        for name, each in limited.items()}
        for name, each in limited.items():
            self.tenants[name].serve(each)
        self._gone += max(0, before - self.changes) + 1

    def purse(self, key_digest: bytes, tenant: Tenant) -> Purse:
        """Return the accounts that pay for a request of a key."""
        return Purse(self.of(key_digest), self.tenants.get(tenant.name), tenant.prompt_price, tenant.answer_price)

    def of(self, key_digest: bytes) -> Account:
        """The account of a key that the policy knows."""
        if key_digest not in self._accounts:
            self._accounts[key_digest] = Account(self.rates, self._clock)
        return self._accounts[key_digest]

    def __iter__(self) -> Iterator[tuple[bytes, Account]]:
        """Each account that was asked for, by the SHA-256 of its key."""
        return iter(self._accounts.items())

    @property
    def changes(self) -> int:
        """A number that grows with every charge, refund and list of tenants."""
        accounts = *self._accounts.values(), *self.tenants.values()
        return self._gone + sum(window.changes for account in accounts for window in account.windows().values())


class Occupancy:
    """Requests in progress, `most` at the same time; one whose body is there in part counts. Some
    places are kept for tenants who hold none, so that one tenant cannot have them all."""

    def __init__(self, most: int, tenants: Collection[str], retry_after: Callable[[str], float] = lambda tenant: 1,
                 own: Mapping[str, int] | None = None) -> None:
        """`tenants`: who may ask, by name; `retry_after`: seconds after which a refused one may
        come again; `own`: most places of those tenants who may not have as many as others leave."""
        self._most, self._retry_after = most, retry_after
        self._held: Counter[str] = Counter()
        self.serve(tenants, own)

    def serve(self, tenants: Collection[str], own: Mapping[str, int] | None = None) -> None:
        """Let these tenants ask from now on. Places that others hold stay theirs."""
        self._tenants, self._own = frozenset(tenants), {} if own is None else dict(own)
        self.left = self._most - min(max(len(self._tenants) - 1, 0), self._most // RESERVED_SHARE)  # one tenant's most

    def held(self, tenant: str | None = None) -> int:
        """Places that are taken, by a tenant or by all."""
        return self._held.total() if tenant is None else self._held[tenant]

    def free(self, tenant: str) -> int:
        """Places that a tenant may take."""
        without = self._tenants - self._held.keys()
        reserved = 0 if tenant in without else min(len(without), self._most // RESERVED_SHARE)
        free = self._most - self._held.total() - reserved
        return min(free, self._own.get(tenant, self._most) - self._held[tenant])

    def take(self, tenant: str, places: int = 1) -> None:
        """Take places. RequestError where too few are free, or those that are free are kept for
        others."""
        if self.free(tenant) < places:
            raise RequestError("too_many_requests", retry_after=self._retry_after(tenant))
        self._held[tenant] += places

    def leave(self, tenant: str, places: int = 1) -> None:
        """Give places back."""
        self._held[tenant] -= places
        if not self._held[tenant]:
            del self._held[tenant]
