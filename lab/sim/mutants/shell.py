"""Mutants of whole boards: the mesh's edges, the membership's detector, the writer of checkpoints,
the board's loop."""

from __future__ import annotations

from lab.sim.mutants.mutant import Edit, Mutant

WRITER = "edgegossip.checkpoint.writer:Writer."
STORE = "edgegossip.checkpoint.store:Store."
EDGE = "edgegossip.mesh.outbound:OutgoingEdge."
QUEUE = "edgegossip.mesh.outbound:FrameQueue."
DETECTOR = "edgegossip.mesh.membership.detector:Detector."
SECURITY = "edgegossip.mesh.tls_security:"
INBOUND = "edgegossip.mesh.inbound:Inbound."
ENGINE = "edgegossip.engine.node:NodeEngine."
NODE = "edgegossip.node.gossip_node:GossipNode."
PLAIN = ("dpsgd",)


def options(faults: str, **more: object) -> dict[str, object]:
    """Return where a mutant is looked for."""
    return {
        "mode": "shell",
        "faults": faults,
        "topology": "ring",
        "nodes": 3,
        "deadline_s": 2.0,
        "codec": "fp32",
        **more,
    }


MUTANTS = (
    Mutant(
        "shell-written-once",
        "the writer ends after its first checkpoint",
        PLAIN,
        (Edit(WRITER + "_work", "stmt _ended 6", "$\nreturn"),),
        options("none"),
    ),
    Mutant(
        "shell-nothing-written",
        "the writer writes nothing",
        PLAIN,
        (Edit(WRITER + "offer", "stmt 0", "return"),),
        options("crash@5-7:1"),
    ),
    Mutant(
        "shell-disk-not-waited-for",
        "a round is called finished though those before it are not on the disk",
        PLAIN,
        (Edit(WRITER + "_catch_up", "test _hangs", "False"),),
        options("slow-disk=5@2-12:1"),
    ),
    Mutant(
        "shell-disk-given-up",
        "after one error of the disk the writer tries it no more",
        PLAIN,
        (Edit(WRITER + "_failed", "BinOp _clock", "1e9"),),
        options("failing-disk@3-6:1"),
    ),
    Mutant(
        "shell-tries-as-often-as-ever",
        "who cannot be reached is tried every 0.3 s",
        PLAIN,
        (Edit(EDGE + "_run", "Call min 0", "0.3"),),
        options("crash@3-30:1"),
    ),
    Mutant(
        "shell-restart-unnoticed",
        "another process of a peer is taken for the one before",
        PLAIN,
        (Edit(EDGE + "_open", "stmt _go_down", "pass"),),
        options("crash@5-6:1"),
    ),
    Mutant(
        "shell-queue-forgotten",
        "what a lost stream carried is not sent again",
        PLAIN,
        (Edit(QUEUE + "restart", "stmt 0", "self._sent.clear(); $"),),
        options("split@3-11:1"),
    ),
    Mutant(
        "shell-lost-never-down",
        "a peer that is out of reach stays so, and never counts as gone",
        PLAIN,
        (Edit(EDGE + "_lost", "stmt _set_down_timer 1", "pass"),),
        options("one-way-cut@3-40:0+1"),
    ),
    Mutant(
        "shell-never-back",
        "a peer that was gone is not told to be back",
        PLAIN,
        (Edit(EDGE + "_came_up", "test DOWN", "$0 is Status.NEW"),),
        options("split@3-15:1"),
    ),
    Mutant(
        "shell-suspects-die",
        "who is suspected is dead",
        PLAIN,
        (Edit(DETECTOR + "_suspicion_ends_s", "BinOp _slowness 0", "$0 if False else $0"),),
        options("pause@3-5:1"),
        unseen="Rounds are quick here: who is away too shortly to be dead is not missed by the members.",
        seen_by=(
            "tests/mesh/membership/test_detector.py::test_nobody_is_named_dead_by_mistake_when_a_third_of_all_messages_is_lost",
        ),
    ),
    Mutant(
        "shell-nobody-ever-dead",
        "a suspicion never ends",
        PLAIN,
        (Edit(DETECTOR + "_suspicion_ends_s", "BinOp _suspected_s", "1e9"),),
        options("crash@3-40:1", nodes=4),
    ),
    Mutant(
        "shell-written-without-sync",
        "a checkpoint is not synced",
        PLAIN,
        (Edit(STORE + "_write", "stmt sync", "pass"),),
        options("power-cut@6-8:1"),
    ),
    Mutant(
        "shell-folder-not-synced",
        "the name of a checkpoint is not synced",
        PLAIN,
        (Edit(STORE + "_save", "stmt sync_folder", "pass"),),
        options("power-cut@6-8:1"),
    ),
    Mutant(
        "shell-impatient-for-a-while",
        "in one round neighbours have no time to send, while a board elsewhere is away",
        ("choco-sgd",),
        (Edit("edgegossip.gossip.rounds:Synchronous.step", "Call SetTimer", "$0(0.01 if s.round == 12 else $1)"),),
        options("crash@3-20:2", nodes=4),
    ),
    Mutant(
        "shell-no-refutation",
        "who is suspected says nothing",
        PLAIN,
        (Edit(DETECTOR + "_refute", "stmt 0", "return"),),
        options("pause@3-5:1,loss=0.4@5-15"),
    ),
    Mutant(
        "shell-stood-still-silently",
        "who stood still does not say so",
        PLAIN,
        (Edit(NODE + "_stood_still", "stmt event", "pass"),),
        options("pause@3-12:1"),
    ),
    Mutant(
        "shell-deadline-before-frames",
        "a deadline goes before frames that wait, and nobody looks whether the board stood still",
        PLAIN,
        (
            Edit(NODE + "_took_waiting", "stmt 0", "return False"),
            Edit(NODE + "_stood_still", "stmt 0", "return"),
        ),
        options("pause@2.5-9:1"),
    ),
    Mutant(
        "shell-last-round-refused",
        "messages of the run's last round are refused",
        PLAIN,
        (Edit(ENGINE + "_receive", "test rounds", "$0 >= $1 - 1"),),
        options("none"),
    ),
    Mutant(
        "shell-run-taken-to-be-over",
        "a board that comes again ends when its neighbours have left, though the run goes on elsewhere",
        PLAIN,
        (Edit(ENGINE + "_start_if_possible", "test restarted", "$0 and $1 and $2"),),
        options("leave@6-7:0,crash@6.5-9:1", topology="star", nodes=4),
    ),
    Mutant(
        "shell-came-and-counts-as-gone",
        "a peer that came in time counts as gone when the time is over",
        PLAIN,
        (Edit(EDGE + "_came_up", "stmt _cancel_down_timer", "pass"),),
        options("full-disk@50-65:2"),
    ),
    Mutant(
        "shell-other-mesh-taken-in",
        "who speaks another version of the mesh's protocol is taken in",
        PLAIN,
        (Edit(INBOUND + "_accept", "test PROTOCOL_VERSION", "False"),),
        options("other-version=2@3-15:1"),
    ),
    Mutant(
        "shell-other-member-taken-in",
        "who speaks another version of membership may join",
        PLAIN,
        (Edit("edgegossip.mesh.membership.agent:MembershipService._check_joiner", "test PROTOCOL_VERSION", "False"),),
        options("other-version=1@8-20:1"),
    ),
    Mutant(
        "shell-other-codec-taken-in",
        "boards with two versions of a codec take each other in",
        PLAIN,
        (Edit(INBOUND + "_check_agreement", "test difference", "False"),),
        options("other-version=3@3-15:1"),
    ),
    Mutant(
        "shell-versions-the-wrong-way-round",
        "who is refused for its version is said to speak ours",
        PLAIN,
        (Edit(INBOUND + "_accept", "Call other_version", "$0($1, $4, $3, $2)"),),
        options("other-version=2@3-15:1"),
    ),
    Mutant(
        "shell-founder-left-alone",
        "a member that is known to be there is not told of the others when it comes again",
        PLAIN,
        (Edit(DETECTOR + "mark_alive", "test address", "$ and not $0.here"),),
        options("other-version=2@3-15:0"),
    ),
    Mutant(
        "shell-own-end-not-said",
        "a board does not say that its certificate has ended",
        PLAIN,
        (Edit(SECURITY + "TlsSecurity.watch", "stmt out_of_date 1", "expired = end_s"),),
        options("certificate-ends@3-15:1"),
    ),
    Mutant(
        "shell-end-for-another-cause",
        "that a certificate has ended is told in OpenSSL's words",
        PLAIN,
        (Edit("edgegossip.security.tls:words", "test _EXPIRED", "False"),),
        options("certificate-ends@3-30:1,crash@5-7:1"),
    ),
    Mutant(
        "shell-refused-silently",
        "who is refused in the TLS handshake is not told of",
        PLAIN,
        (Edit("edgegossip.security.front_end:FrontEnd._refuse", "stmt _say_refused", "pass"),),
        options("certificate-ends@3-30:1,crash@5-7:1"),
    ),
    Mutant(
        "shell-new-certificate-not-taken",
        "a new certificate in the folder is not taken before the next start",
        PLAIN,
        (Edit(SECURITY + "Credentials.look", "test stale", "True"),),
        options("certificate-ends@3-15:1,split@8-20:1"),
    ),
)
