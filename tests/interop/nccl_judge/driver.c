/*
 * Asks one release of NCCL, and its log tells the answers.
 *
 * driver LIBRARY ACTION...: an action is `id`, for a unique id, for which NCCL chooses its bootstrap interface, or `SYMBOL:FORM`,
 * which starts one of its networks. SYMBOL is the offset of its struct (ncclNetIb, ncclNetSocket) in the library, whose first two
 * members are its name and its init function. FORM is what that takes: 1 the logger (up to 2.25), 2 also the profiler (2.26 and
 * 2.27), 5 before both a place for a context, the communicator's number and settings (since 2.28; the ncclNet_t of
 * src/include/plugin/nccl_net.h). Forms from 10 on are functions that choose a GID, asked for each port of our verbs once the network has
 * started: 10 ncclParamIbGidIndex, 11 ncclIbGetGidIndex with the length of the table (2.21), 12 with the port's attributes.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
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

/* The kernel answers EINVAL for the type of a GID that is unused (drivers/infiniband/core/sysfs.c), which no plain file does. */
ssize_t read(int fd, void *bytes, size_t size)
{
	ssize_t got = syscall(SYS_read, fd, bytes, size);
	char link[64], path[4096];
	ssize_t length;

	if (got)
		return got;
	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	length = readlink(link, path, sizeof(path) - 1);
	path[length > 0 ? length : 0] = 0;
	if (!strstr(path, "/gid_attrs/types/"))
		return 0;
	errno = EINVAL;
	return -1;
}

/* One line for each device's first port. What is set is not searched for. */
static void gids(void *function, int form)
{
	static int set = -1;
	void *verbs = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
	void **(*list)(int *) = dlsym(verbs, "ibv_get_device_list");
	void *(*open)(void *) = dlsym(verbs, "ibv_open_device");
	const char *(*name)(void *) = dlsym(verbs, "ibv_get_device_name");
	int (*query)(void *, uint8_t, void *) = dlsym(verbs, "ibv_query_port");
	int count, at;
	void **devices = list(&count);

	for (at = 0; at < count; at++) {
		void *context = open(devices[at]);
		int attributes[64] = { 0 }, index = -1, result = 0;

		query(context, 1, attributes);
		switch (form) {
		case 10:
			index = set = (int)((int64_t (*)(void))function)();
			break;
		case 11:
			if (set >= 0)
				return;
			result = ((int (*)(void *, uint8_t, int, int *))function)(context, 1, attributes[3], &index);
			break;
		case 12:
			result = ((int (*)(void *, uint8_t, void *, int *))function)(context, 1, attributes, &index);
			break;
		}
		printf("\nGID %d %s %d %d\n", form, name(devices[at]), result, index);
	}
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
		else if (atoi(form + 1) >= 10)
			gids((char *)info.dli_fbase + symbol, atoi(form + 1));
		else
			printf("\nSTARTED %d\n", start((struct net *)((char *)info.dli_fbase + symbol), atoi(form + 1)));
		fflush(stdout);
	}
	/* Threads of NCCL's wait for events of HCAs. */
	_exit(0);
}
