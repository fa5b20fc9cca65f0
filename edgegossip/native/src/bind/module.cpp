// The Python module. Bindings (bind/*.cpp) check the arguments, choose the instruction set, release the GIL, call the kernel.

#include "bind/bind.hpp"

NB_MODULE(_native, m) {
    nanobind::set_leak_warnings(false);  // a program that is interrupted would print what it still held
    edgegossip::bind_general(m);
    edgegossip::bind_coding(m);
    edgegossip::bind_eden(m);
    edgegossip::bind_half(m);
    edgegossip::bind_int8(m);
    edgegossip::bind_int8_program(m);
    edgegossip::bind_int8_sequences(m);
    edgegossip::bind_int8_shaping(m);
    edgegossip::bind_keys(m);
    edgegossip::bind_matrix(m);
    edgegossip::bind_minmax8(m);
    edgegossip::bind_sparse(m);
    edgegossip::bind_pool(m);
    edgegossip::bind_quantise(m);
    edgegossip::bind_relay(m);
    edgegossip::bind_stepped(m);
}
