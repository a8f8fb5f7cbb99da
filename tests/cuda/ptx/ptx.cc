/* ptx.cc finds the kernels of nvcc's PTX by the names of those that are launched, and reports wrong accesses. */
#include "tests/cuda/ptx/ptx.h"
#include "tests/cuda/emulator/host.h"
#include <cxxabi.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <mutex>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <unordered_map>
#include <vector>

/* ---- what the files register before main() ----------------------------------------------------------------------- */
struct registered {
    const char *name;
    cuda_host_kernel run;
    uint64_t launches;
};
static std::vector<registered> &kernels(void) {
    static std::vector<registered> &all = *new std::vector<registered>;
    return all;
}
static std::vector<const char *> &places(void) {
    static std::vector<const char *> &all = *new std::vector<const char *>;
    return all;
}
ptx_unit::ptx_unit(const ptx_kernel *k, int n_kernels, uint32_t *first_kernel, const char *const *p, int n_places,
                   uint32_t *first_place) {
    *first_kernel = (uint32_t)kernels().size(), *first_place = (uint32_t)places().size();
    for (int i = 0; i < n_kernels; i++) kernels().push_back({k[i].name, k[i].run, 0});
    places().insert(places().end(), p, p + n_places);
}
const int ptx_plant = getenv("PLANT") ? atoi(getenv("PLANT")) : -1;
const char *ptx_place(uint32_t place) { return places()[place]; }

/* The codecs whose PTX differs from an earlier architecture's: distinct.sh wrote them beside the program. */
__attribute__((constructor)) static void only_some(void) {
    char text[1024] = "";
    const ssize_t n = readlink("/proc/self/exe", text, sizeof text - 8);
    FILE *const f = n > 0 ? fopen(strcat(text, ".codecs"), "r") : NULL;
    if (!f) return;
    if (fgets(text, sizeof text, f)) setenv("CODECS", text, 0);
    fclose(f);
    fprintf(stderr, "ptx: CODECS=%s\n", getenv("CODECS"));
}

/* ---- the program's symbols --------------------------------------------------------------------------------------- */
/* Calls found(name, address) for each function in this program's table of symbols. */
template <typename F> static void each_function(F found) {
    const int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    struct stat s;
    if (file < 0 || fstat(file, &s)) abort();
    const char *const at = (const char *)mmap(NULL, (size_t)s.st_size, PROT_READ, MAP_PRIVATE, file, 0);
    if (at == MAP_FAILED) abort();
    close(file);
    const Elf64_Ehdr *const head = (const Elf64_Ehdr *)at;
    const Elf64_Shdr *const sections = (const Elf64_Shdr *)(at + head->e_shoff);
    for (int i = 0; i < head->e_shnum; i++) {
        if (sections[i].sh_type != SHT_SYMTAB) continue;
        const Elf64_Sym *const symbols = (const Elf64_Sym *)(at + sections[i].sh_offset);
        const char *const names = at + sections[sections[i].sh_link].sh_offset;
        for (uint64_t k = 0; k < sections[i].sh_size / sizeof *symbols; k++)
            if (ELF64_ST_TYPE(symbols[k].st_info) == STT_FUNC) found(names + symbols[k].st_name, symbols[k].st_value);
    }
    munmap((void *)(uintptr_t)at, (size_t)s.st_size);
}
static uintptr_t loaded_at(void) {
    uintptr_t base = 0;
    dl_iterate_phdr([](dl_phdr_info *i, size_t, void *to) { return *(uintptr_t *)to = i->dlpi_addr, 1; }, &base);
    return base;
}

/* ---- launches ---------------------------------------------------------------------------------------------------- */
static uint32_t running;
static void summary(void) {
    uint64_t launches = 0, launched = 0;
    for (const registered &k : kernels()) launches += k.launches, launched += k.launches > 0;
    fprintf(stderr, "ptx: %llu launches of %llu kernels, of %zu\n", (unsigned long long)launches,
            (unsigned long long)launched, kernels().size());
    for (const registered &k : kernels())
        if (!k.launches && getenv("PTX_IDLE")) fprintf(stderr, "ptx: not launched: %s\n", k.name);
}
/* By address: the kernels of this program that g++ compiled, as numbers of those that nvcc compiled. nvcc omits the L
 * of functions that are static. */
static std::unordered_map<uintptr_t, uint32_t> find_all(void) {
    std::unordered_map<std::string, uint32_t> numbers;
    std::unordered_map<uintptr_t, uint32_t> all;
    const uintptr_t base = loaded_at();
    for (uint32_t i = 0; i < kernels().size(); i++) numbers[kernels()[i].name] = i;
    each_function([&](const char *name, uintptr_t at) {
        const auto k = numbers.find(strncmp(name, "_ZL", 3) ? name : "_Z" + std::string(name + 3));
        if (k != numbers.end()) all[base + at] = k->second;
    });
    atexit(summary);
    return all;
}
cuda_host_kernel cuda_host_instead(const void *kernel) {
    static const std::unordered_map<uintptr_t, uint32_t> &all =
        *new std::unordered_map<uintptr_t, uint32_t>(find_all());
    const auto k = all.find((uintptr_t)kernel);
    if (k == all.end()) {
        fprintf(stderr, "ptx: a kernel is launched that is not in nvcc's PTX\n");
        abort();
    }
    kernels()[k->second].launches++;
    return kernels()[k->second].run;
}
void ptx_enter(uint32_t kernel) {
    running = kernel;
    ptx_order_enter();
}

/* ---- errors ------------------------------------------------------------------------------------------------------ */
const char *ptx_kernel_name(void) {
    const char *const name = kernels()[running].name, *readable = abi::__cxa_demangle(name, NULL, NULL, NULL);
    return readable ? readable : name;
}
void ptx_misaligned(const unsigned char *p, unsigned bytes, uint32_t place) {
    fprintf(stderr, "ptx: misaligned access of %u bytes at %p, %s, in %s\n", bytes, (const void *)p, ptx_place(place),
            ptx_kernel_name());
    abort();
}
