/* A libmlx5 for the HCAs of verbs.c: what NCCL asks of one while it looks for Data Direct functions.
 *
 * FAKE_DATA_DIRECT is the path of that function below /sys, as the driver gives it. The functions are those that NCCL
 * demands (src/misc/mlx5dvsymbols.cc of 2.28.9).
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool mlx5dv_is_supported(struct ibv_device *device) { (void)device; return true; }

int mlx5dv_get_data_direct_sysfs_path(struct ibv_context *context, char *path, size_t room)
{
	const char *function = getenv("FAKE_DATA_DIRECT");

	(void)context;
	if (!function || !*function)
		return ENODEV;
	if (strlen(function) >= room)
		return ENOSPC;
	strcpy(path, function);
	return 0;
}

/* As verbs.c has it: a bad descriptor, and no lack of support. */
struct ibv_mr *mlx5dv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t length, uint64_t iova, int fd, int access, int more)
{
	(void)pd, (void)offset, (void)length, (void)iova, (void)fd, (void)access, (void)more;
	errno = EBADF;
	return NULL;
}
