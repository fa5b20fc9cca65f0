/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * A plugin of QEMU's user mode: how often every block of instructions was executed, between two marks of the guest.
 *
 * Of contrib/plugins/hotblocks.c (Alex Bennée, GPL-2.0-or-later), which has no marks and prints no instructions. A guest marks
 * with the system call getsid: of START, all counts become 0; of a smaller number n below it, the counts go to the file
 * FOLDER/n.blocks, one line a block: how often; where it starts and its instructions, in hexadecimal.
 */
#include <glib.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <qemu-plugin.h>

QEMU_PLUGIN_EXPORT int qemu_plugin_version = QEMU_PLUGIN_VERSION;

#define GETSID 156 /* on aarch64 */
#define START 7000000
#define PARTS 1000

typedef struct {
    uint64_t count;
    char *words;
} Block;

static GMutex lock;
static GHashTable *blocks; /* of where they start and their words: QEMU translates a block anew now and then */
static char *folder;

static void translated(qemu_plugin_id_t id, struct qemu_plugin_tb *tb)
{
    GString *words = g_string_new(NULL);
    g_string_append_printf(words, " %" PRIx64, qemu_plugin_tb_vaddr(tb));
    for (size_t i = 0; i < qemu_plugin_tb_n_insns(tb); i++) {
        const uint32_t *word = qemu_plugin_insn_data(qemu_plugin_tb_get_insn(tb, i));
        g_string_append_printf(words, " %08" PRIx32, *word);
    }
    g_mutex_lock(&lock);
    Block *block = g_hash_table_lookup(blocks, words->str);
    if (!block) {
        block = g_new0(Block, 1);
        block->words = g_string_free(words, FALSE);
        g_hash_table_insert(blocks, block->words, block);
    } else {
        g_string_free(words, TRUE);
    }
    g_mutex_unlock(&lock);
    qemu_plugin_register_vcpu_tb_exec_inline(tb, QEMU_PLUGIN_INLINE_ADD_U64, &block->count, 1);
}

static void clear(gpointer key, gpointer value, gpointer file)
{
    ((Block *)value)->count = 0;
}

static void print(gpointer key, gpointer value, gpointer file)
{
    Block *block = value;
    if (block->count) {
        fprintf(file, "%" PRIu64 "%s\n", block->count, block->words);
    }
}

static void called(qemu_plugin_id_t id, unsigned int cpu, int64_t number, uint64_t mark, uint64_t a2, uint64_t a3, uint64_t a4,
                   uint64_t a5, uint64_t a6, uint64_t a7, uint64_t a8)
{
    if (number != GETSID || mark > START || mark + PARTS <= START) {
        return;
    }
    g_mutex_lock(&lock);
    if (mark == START) {
        g_hash_table_foreach(blocks, clear, NULL);
    } else {
        g_autofree char *path = g_strdup_printf("%s/%d.blocks", folder, (int)(START - mark));
        FILE *file = fopen(path, "w");
        if (file) {
            g_hash_table_foreach(blocks, print, file);
            fclose(file);
        }
    }
    g_mutex_unlock(&lock);
}

QEMU_PLUGIN_EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t *info, int argc, char **argv)
{
    if (argc != 1 || !g_str_has_prefix(argv[0], "folder=")) {
        fprintf(stderr, "blocks.so wants folder=PATH\n");
        return -1;
    }
    folder = g_strdup(argv[0] + strlen("folder="));
    blocks = g_hash_table_new(g_str_hash, g_str_equal);
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
    qemu_plugin_register_vcpu_syscall_cb(id, called);
    return 0;
}
