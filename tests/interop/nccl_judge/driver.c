/*
 * Asks one release of NCCL, and its log tells the answers.
 *
 * driver LIBRARY ACTION...: an action is `id`, for a unique id, for which NCCL chooses its bootstrap interface, or `SYMBOL:FORM`,
 * which starts one of its networks. SYMBOL is the offset of its struct (ncclNetIb, ncclNetSocket) in the library, whose first two
 * members are its name and its init function. FORM is what that takes: 1 the logger (up to 2.25), 2 also the profiler (2.26 and
 * 2.27), 5 before both a place for a context, the communicator's number and settings (since 2.28; the ncclNet_t of
 * src/include/plugin/nccl_net.h).
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct id {
	char bytes[128];
};

struct net {
	const char *name;
	void *init;
};

static void ignore(int level, unsigned long flags, const char *file, int line, const char *format, ...)
{
}

static int profile(void **event, int type, void *parent, int64_t id, void *details)
{
	return 0;
}

static int start(const struct net *net, int form)
{
	static int settings[64];
	static void *context;

	switch (form) {
	case 1:
		return ((int (*)(void *))net->init)(ignore);
	case 2:
		return ((int (*)(void *, void *))net->init)(ignore, profile);
	case 5:
		return ((int (*)(void **, uint64_t, void *, void *, void *))net->init)(&context, 0, settings, ignore, profile);
	}
	fprintf(stderr, "no form %d\n", form);
	exit(1);
}

int main(int argc, char **argv)
{
	struct id id;
	Dl_info info;
	int at, (*get)(struct id *);
	void *library = argc > 2 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;

	if (!library || !(get = (int (*)(struct id *))dlsym(library, "ncclGetUniqueId")) || !dladdr((void *)get, &info)) {
		fprintf(stderr, "%s\n", argc > 2 ? dlerror() : "which library, and what of it?");
		return 1;
	}
	for (at = 2; at < argc; at++) {
		char *form;
		unsigned long symbol = strtoul(argv[at], &form, 16);

		if (!strcmp(argv[at], "id"))
			printf("\nRESULT %d\n", get(&id));
		else
			printf("\nSTARTED %d\n", start((struct net *)((char *)info.dli_fbase + symbol), atoi(form + 1)));
		fflush(stdout);
	}
	/* Threads of NCCL's wait for events of HCAs. */
	_exit(0);
}
