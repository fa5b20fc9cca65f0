"""How lab/results/arm_cost.py makes blocks of what QEMU counted."""

from lab.results.arm_cost import Block, joined, kind_of

ADD, MUL, RETURN = "0b000000", "1b007c00", "d65f03c0"
BACK = "54ffffa1"  # b.ne to three instructions before


def test_a_loop_on_two_pages_is_one_block():
    """It is entered from a block before it, whose end QEMU counts with the loop's own end."""
    found = [(1, 0xFF4, (ADD, MUL, ADD)), (9, 0xFF8, (MUL, ADD)), (10, 0x1000, (ADD, BACK)), (1, 0x1008, (RETURN,))]
    loop = Block((MUL, ADD, ADD, BACK))
    assert loop.is_loop
    assert joined(found) == [(9, loop), (1, Block((ADD, *loop.words))), (1, Block((RETURN,)))]


def test_what_jumps_to_a_page_s_start_remains():
    assert joined([(2, 0xFFC, (ADD,)), (6, 0x1000, (MUL, RETURN))]) == [
        (4, Block((MUL, RETURN))),
        (2, Block((ADD, MUL, RETURN))),
    ]


def test_the_same_code_elsewhere_is_the_same_block():
    assert joined([(2, 0x40, (MUL, RETURN)), (5, 0x80, (MUL, RETURN)), (1, 0x100, (ADD,))]) == [
        (7, Block((MUL, RETURN))),
        (1, Block((ADD,))),
    ]


def test_a_look_up_in_a_table_is_no_branch():
    assert [kind_of(line) for line in ("tbl\tv0.16b, { v1.16b }, v2.16b", "tbz\tw0, #31, #68", "b.ne\t#-8")] == [
        "vector",
        "branches",
        "branches",
    ]
