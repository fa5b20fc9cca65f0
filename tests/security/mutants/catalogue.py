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
        Edit(BUCKETS + "take", "Call _rate", "$2"),
    ),
    Mutant(
        "refusal-costs-a-token",
        "who asks too often is never served again",
        schedules.buckets,
        Edit(BUCKETS + "take", "IfExp", "$1"),
    ),
    Mutant(
        "bucket-forgets-the-newest",
        "where many are known, a newcomer has no limit",
        schedules.buckets,
        Edit(BUCKETS + "take", "Call popitem", "$0(last=True)"),
    ),
    Mutant(
        "one-source-fills-the-log",
        "nobody has a share of the log of its own",
        schedules.lines,
        Edit(SECURITY + "limits:RateLimitedLog.worth", "BoolOp", "True"),
    ),
    Mutant(
        "same-line-again",
        "a line is told as often as it happens",
        schedules.lines,
        Edit(SECURITY + "limits:RateLimitedLog.worth", "test", "False"),
    ),
    Mutant(
        "strangers-take-the-boards-turn",
        "an address that was refused goes on with the rate of boards",
        schedules.shared,
        Edit(SECURITY + "limits:SharedRateLimiter.allows", "test", "$1"),
    ),
    Mutant(
        "stranger-for-ever",
        "an address that was refused once stays a stranger's",
        schedules.shared,
        Edit(SECURITY + "limits:SharedRateLimiter.allows", "BoolOp STRANGE_S", "$0"),
    ),
    Mutant(
        "token-used-twice",
        "a token stays good after its use",
        schedules.one_time_tokens,
        Edit(TOKENS + "redeem", "Call _remove", "self._issued[$1][0]"),
    ),
    Mutant(
        "token-too-old",
        "a token is good for longer than was said",
        schedules.one_time_tokens,
        Edit(TOKENS + "_forget_old", "Compare", "$0 > $1 - 5.0"),
    ),
    Mutant(
        "tokens-push-out-others",
        "who asks for many tokens drops somebody else's",
        schedules.one_time_tokens,
        Edit(TOKENS + "issue", "Call _remove", "$0(next(iter(self._issued)))"),
    ),
    Mutant(
        "newest-token-dropped",
        "of too many tokens the newest goes",
        schedules.one_time_tokens,
        Edit(TOKENS + "issue", "Constant 2", "-1"),
    ),
    Mutant(
        "tokens-outlive-revocation",
        "tokens of who was cut off stay good",
        schedules.one_time_tokens,
        Edit(TOKENS + "revoke", "test", "not $"),
    ),
    Mutant(
        "quarantine-grows-slowly",
        "each further time is longer by as much, not twice as long",
        schedules.kept_out,
        Edit(QUARANTINE + "strike", "BinOp FIRST_S", "$0 * times"),
    ),
    Mutant(
        "quarantine-without-limit",
        "a board that broke the protocol often is out for hours",
        schedules.kept_out,
        Edit(QUARANTINE + "strike", "Call LONGEST_S", "$1"),
    ),
    Mutant(
        "struck-twice",
        "what was on its way when quarantine began counts as another time",
        schedules.kept_out,
        Edit(QUARANTINE + "strike", "test", "False"),
    ),
    Mutant(
        "never-forgiven",
        "good conduct takes no time off",
        schedules.kept_out,
        Edit(QUARANTINE + "_times", "Call FORGET_S", "0"),
    ),
    Mutant(
        "honest-evicted",
        "who speaks has to go before who says nothing",
        schedules.eviction,
        Edit(LIMITER + "to_evict", "UnaryOp 0", "$0"),
    ),
    Mutant(
        "newest-evicted",
        "the newest of the connections has to go",
        schedules.eviction,
        Edit(LIMITER + "to_evict", "Tuple network_of", "($0, $1, -$2)"),
    ),
    Mutant(
        "one-address-takes-every-place",
        "no address has a limit of its own",
        schedules.eviction,
        Edit(LIMITER + "to_evict", "test _max_per_address", "False"),
    ),
    Mutant(
        "small-network-pays",
        "the network with the fewest connections has to make way",
        schedules.eviction,
        Edit(LIMITER + "to_evict", "UnaryOp network_of", "$0"),
    ),
    Mutant(
        "forged-list-taken",
        "a revocation list of another authority is taken over",
        schedules.revocation,
        Edit(SECURITY + "identity:Revocations.offer", "test is_signed_by", "False"),
    ),
    Mutant(
        "useless-list-for-nothing",
        "who gives the very list that we have is not told off",
        schedules.revocation,
        Edit(SECURITY + "identity:Revocations.offer", "test number 0", "$0 < $1"),
    ),
    Mutant(
        "older-list-examined",
        "the signature of a list that is of no use is looked at, and complained about",
        schedules.revocation,
        Edit(SECURITY + "identity:Revocations.offer", "stmt _present 2", "pass"),
    ),
    Mutant(
        "revoked-comes-in",
        "a revoked certificate is let in",
        schedules.admission,
        Edit(ADMISSION + "check", "test", "False"),
    ),
    Mutant(
        "kept-out-comes-with-a-token",
        "a token from before the quarantine lets its holder in",
        schedules.admission,
        Edit(ADMISSION + "check_connection", "test", "False"),
    ),
    Mutant(
        "not-among-the-names",
        "a board of the fleet that is none of this run comes in",
        schedules.admission,
        Edit(ADMISSION + "by_signature", "test name", "False"),
    ),
    Mutant(
        "expired-comes-in",
        "an expired certificate signs",
        schedules.admission,
        Edit(ADMISSION + "by_signature", "Compare _clock", "$0 <= $1"),
    ),
    Mutant(
        "not-yet-valid-comes-in",
        "a certificate signs before its time",
        schedules.admission,
        Edit(ADMISSION + "by_signature", "Compare _clock", "$1 <= $2"),
    ),
    Mutant(
        "list-is-no-news",
        "who asks whether there is a newer list is never told",
        schedules.admission,
        Edit(ADMISSION + "look", "Compare", "False"),
    ),
    Mutant(
        "signature-of-the-revoked",
        "a revoked certificate signs",
        schedules.admission,
        Edit(SECURITY + "identity:Identity.signer", "test revocations", "False"),
    ),
    Mutant(
        "signature-of-anything",
        "a signature is good for whatever comes with it",
        schedules.admission,
        Edit(SECURITY + "identity:Identity.signer", "UnaryOp certificates", "False"),
    ),
)
