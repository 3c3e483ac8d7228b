// Functions of plain loops that are compiled for several processors and chosen when the program starts.
#pragma once

#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__)
#define SONORAN_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define SONORAN_CLONES
#endif
