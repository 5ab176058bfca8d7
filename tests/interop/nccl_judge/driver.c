/* Asks one release of NCCL for a unique id, which makes it choose its bootstrap interface. Its log tells which. */
#include <dlfcn.h>
#include <stdio.h>

struct id {
	char bytes[128];
};

int main(int argc, char **argv)
{
	struct id id;
	int (*get)(struct id *);
	void *library = argc == 2 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;

	if (!library || !(get = (int (*)(struct id *))dlsym(library, "ncclGetUniqueId"))) {
		fprintf(stderr, "%s\n", argc == 2 ? dlerror() : "which library?");
		return 1;
	}
	printf("\nRESULT %d\n", get(&id));
	fflush(stdout);
	return 0;
}
