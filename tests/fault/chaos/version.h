/* version.h: the library's own code by which ranks meet, compiled into the test with a version that it may change. It takes the
 * place of the library's. */
#ifndef CHAOS_VERSION_H
#define CHAOS_VERSION_H
#pragma push_macro("ESPRESSO_VERSION")
#undef ESPRESSO_VERSION
#define ESPRESSO_VERSION chaos_version
#include "espresso_impl/job/handshake.c"
#include "espresso_impl/job/rendezvous.c"
#pragma pop_macro("ESPRESSO_VERSION")
#endif
