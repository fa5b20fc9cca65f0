"""Mutants of admission: small mistakes in the code that says who may come in, and the schedule that
is to notice each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.lab.sim.mutants.mutant import Edit
from tests.security.mutants import schedules

SECURITY = "edgegossip.security."
BUCKETS = SECURITY + "limits:TokenBuckets."
TOKENS = SECURITY + "handshake:OneTimeTokens."
QUARANTINE = SECURITY + "admission:Quarantine."
LIMITER = SECURITY + "limits:ConnectionLimiter."
ADMISSION = SECURITY + "admission:Admission."


@dataclass(frozen=True, slots=True)
class Mutant:
    """`what` says what is wrong; `schedule` plays one seed."""

    name: str
    what: str
    schedule: Callable[[int], None]
    edit: Edit


MUTANTS = (
    Mutant(
        "bucket-without-brim",
        "who was away for long may ask without end",
        schedules.buckets,
        Edit(
            BUCKETS + "take",
            "min(self._burst, left + (now_s - then_s) * self._rate)",
            "left + (now_s - then_s) * self._rate",
        ),
    ),
    Mutant(
        "refusal-costs-a-token",
        "who asks too often is never served again",
        schedules.buckets,
        Edit(BUCKETS + "take", "left - tokens if allowed else left", "left - tokens"),
    ),
    Mutant(
        "bucket-forgets-the-newest",
        "where many are known, a newcomer has no limit",
        schedules.buckets,
        Edit(BUCKETS + "take", "popitem(last=False)", "popitem(last=True)"),
    ),
    Mutant(
        "one-source-fills-the-log",
        "nobody has a share of the log of its own",
        schedules.lines,
        Edit(SECURITY + "limits:RateLimitedLog.worth", "source is None or self._one.take(source, now_s)", "True"),
    ),
    Mutant(
        "same-line-again",
        "a line is told as often as it happens",
        schedules.lines,
        Edit(SECURITY + "limits:RateLimitedLog.worth", "if not self._same.take(key, now_s):", "if False:"),
    ),
    Mutant(
        "strangers-take-the-boards-turn",
        "an address that was refused goes on with the rate of boards",
        schedules.shared,
        Edit(SECURITY + "limits:SharedRateLimiter.allows", "if strange or self", "if self"),
    ),
    Mutant(
        "stranger-for-ever",
        "an address that was refused once stays a stranger's",
        schedules.shared,
        Edit(SECURITY + "limits:SharedRateLimiter.allows", " and now_s - refused_s < self.STRANGE_S", ""),
    ),
    Mutant(
        "token-used-twice",
        "a token stays good after its use",
        schedules.one_time_tokens,
        Edit(TOKENS + "redeem", "self._remove(token) if", "self._issued[token][0] if"),
    ),
    Mutant(
        "token-too-old",
        "a token is good for longer than was said",
        schedules.one_time_tokens,
        Edit(TOKENS + "_forget_old", "until_s > now_s", "until_s > now_s - 5.0"),
    ),
    Mutant(
        "tokens-push-out-others",
        "who asks for many tokens drops somebody else's",
        schedules.one_time_tokens,
        Edit(TOKENS + "issue", "self._remove(own[0])", "self._remove(next(iter(self._issued)))"),
    ),
    Mutant(
        "newest-token-dropped",
        "of too many tokens the newest goes",
        schedules.one_time_tokens,
        Edit(TOKENS + "issue", "self._remove(own[0])", "self._remove(own[-1])"),
    ),
    Mutant(
        "tokens-outlive-revocation",
        "tokens of who was cut off stay good",
        schedules.one_time_tokens,
        Edit(TOKENS + "revoke", "if which(holder)", "if not which(holder)"),
    ),
    Mutant(
        "quarantine-grows-slowly",
        "each further time is longer by as much, not twice as long",
        schedules.kept_out,
        Edit(QUARANTINE + "strike", "2.0 ** (times - 1)", "times"),
    ),
    Mutant(
        "quarantine-without-limit",
        "a board that broke the protocol often is out for hours",
        schedules.kept_out,
        Edit(
            QUARANTINE + "strike",
            "min(self.FIRST_S * 2.0 ** (times - 1), self.LONGEST_S)",
            "self.FIRST_S * 2.0 ** (times - 1)",
        ),
    ),
    Mutant(
        "struck-twice",
        "what was on its way when quarantine began counts as another time",
        schedules.kept_out,
        Edit(QUARANTINE + "strike", "if self.reason(board, now_s):", "if False:"),
    ),
    Mutant(
        "never-forgiven",
        "good conduct takes no time off",
        schedules.kept_out,
        Edit(QUARANTINE + "_times", "int((now_s - record.until_s) // self.FORGET_S)", "0"),
    ),
    Mutant(
        "honest-evicted",
        "who speaks has to go before who says nothing",
        schedules.eviction,
        Edit(LIMITER + "to_evict", "return not hesitates, -networks", "return hesitates, -networks"),
    ),
    Mutant(
        "newest-evicted",
        "the newest of the connections has to go",
        schedules.eviction,
        Edit(LIMITER + "to_evict", "p.since_s\n", "-p.since_s\n"),
    ),
    Mutant(
        "one-address-takes-every-place",
        "no address has a limit of its own",
        schedules.eviction,
        Edit(LIMITER + "to_evict", "if len(own) >= self._max_per_address:", "if False:"),
    ),
    Mutant(
        "small-network-pays",
        "the network with the fewest connections has to make way",
        schedules.eviction,
        Edit(LIMITER + "to_evict", "-networks[", "networks["),
    ),
    Mutant(
        "forged-list-taken",
        "a revocation list of another authority is taken over",
        schedules.revocation,
        Edit(SECURITY + "identity:Revocations.offer", "if not offered.is_signed_by(self._authority):", "if False:"),
    ),
    Mutant(
        "useless-list-for-nothing",
        "who gives the very list that we have is not told off",
        schedules.revocation,
        Edit(SECURITY + "identity:Revocations.offer", "offered.number <= told", "offered.number < told"),
    ),
    Mutant(
        "older-list-examined",
        "the signature of a list that is of no use is looked at, and complained about",
        schedules.revocation,
        Edit(
            SECURITY + "identity:Revocations.offer",
            "if offered.number <= self._present.number:\n            return False\n        if not",
            "if not",
        ),
    ),
    Mutant(
        "revoked-comes-in",
        "a revoked certificate is let in",
        schedules.admission,
        Edit(ADMISSION + "check", "if self.identity.revocations.revoked(caller.serial):", "if False:"),
    ),
    Mutant(
        "kept-out-comes-with-a-token",
        "a token from before the quarantine lets its holder in",
        schedules.admission,
        Edit(ADMISSION + "check_connection", "if self.kept_out(caller.subject):", "if False:"),
    ),
    Mutant(
        "not-among-the-names",
        "a board of the fleet that is none of this run comes in",
        schedules.admission,
        Edit(ADMISSION + "by_signature", "if subject.name not in among:", "if False:"),
    ),
    Mutant(
        "expired-comes-in",
        "an expired certificate signs",
        schedules.admission,
        Edit(ADMISSION + "by_signature", "<= end_s:", ":"),
    ),
    Mutant(
        "not-yet-valid-comes-in",
        "a certificate signs before its time",
        schedules.admission,
        Edit(
            ADMISSION + "by_signature",
            "begin_s <= (now_s := self._clock()) <= end_s",
            "(now_s := self._clock()) <= end_s",
        ),
    ),
    Mutant(
        "list-is-no-news",
        "who asks whether there is a newer list is never told",
        schedules.admission,
        Edit(ADMISSION + "look", "return self._number != before", "return False"),
    ),
    Mutant(
        "signature-of-the-revoked",
        "a revoked certificate signs",
        schedules.admission,
        Edit(SECURITY + "identity:Identity.signer", "if self.revocations.revoked(signer.serial):", "if False:"),
    ),
    Mutant(
        "signature-of-anything",
        "a signature is good for whatever comes with it",
        schedules.admission,
        Edit(
            SECURITY + "identity:Identity.signer",
            "if not certificates.verify(signer, _DOMAIN + data, signature[2 + length :]):",
            "if False:",
        ),
    ),
)
