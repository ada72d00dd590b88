/*
 * Sets the node affinity of a domain through libxenlight, which no command of xl does.
 *
 * Problem: libxenlight changes its name with each version of Xen, and is on Xen hosts only.
 * Method: it is loaded when it is needed (dlopen) and asked for four functions. Nothing links to Xen, and no header of
 * Xen is used: the prototypes below are those of its public interface (libxl.h and xentoollog.h of Xen 4.17).
 * Limits: libxl_ctx_alloc takes LIBXL_VERSION, which has been 0 in all versions; a version with another one refuses.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* LIBXL_VERSION of libxl.h. */
#define VERSION 0
/* XTL_ERROR of enum xentoollog_level. */
#define LEVEL_ERROR 8

/* libxl_bitmap of _libxl_types.h: size in bytes. */
struct bitmap {
	uint32_t size;
	uint8_t *map;
};

typedef int (*ctx_alloc_fn)(void **ctx, int version, unsigned flags, void *logger);
typedef int (*ctx_free_fn)(void *ctx);
typedef int (*set_nodeaffinity_fn)(void *ctx, uint32_t domid, struct bitmap *nodes);
typedef void *(*create_logger_fn)(FILE *to, int level, unsigned flags);
typedef void (*destroy_logger_fn)(void *logger);

struct libxl {
	ctx_alloc_fn ctx_alloc;
	ctx_free_fn ctx_free;
	set_nodeaffinity_fn set_nodeaffinity;
	create_logger_fn create_logger;
	destroy_logger_fn destroy_logger;
};

/* What could not be done, kept for the caller. */
static int fail(char *why, size_t room, const char *what, const char *detail)
{
	snprintf(why, room, "%s: %s", what, detail && *detail ? detail : "no reason was given");
	return -1;
}

static int load(struct libxl *xl, const char *name, const char *toollog, char *why, size_t room)
{
	/* Both stay loaded: libxenlight starts helpers of its own. */
	void *lib = dlopen(name, RTLD_NOW | RTLD_LOCAL);
	void *log = lib ? dlopen(toollog, RTLD_NOW | RTLD_LOCAL) : NULL;

	if (!lib || !log)
		return fail(why, room, "libxenlight cannot be loaded", dlerror());
	*(void **)&xl->ctx_alloc = dlsym(lib, "libxl_ctx_alloc");
	*(void **)&xl->ctx_free = dlsym(lib, "libxl_ctx_free");
	*(void **)&xl->set_nodeaffinity = dlsym(lib, "libxl_domain_set_nodeaffinity");
	*(void **)&xl->create_logger = dlsym(log, "xtl_createlogger_stdiostream");
	*(void **)&xl->destroy_logger = dlsym(log, "xtl_logger_destroy");
	if (!xl->ctx_alloc || !xl->ctx_free || !xl->set_nodeaffinity || !xl->create_logger ||
	    !xl->destroy_logger)
		return fail(why, room, "libxenlight lacks a function", name);
	return 0;
}

/* Whether the library is there and has what is needed: 0, or -1 and why not. Nothing is changed. */
int instep_xen_probe(const char *name, const char *toollog, char *why, size_t room)
{
	struct libxl xl;

	return load(&xl, name, toollog, why, room);
}

/* Sets the node affinity of a domain to a map of nodes, bit N of byte N / 8: 0, or -1 and why not. */
int instep_xen_set_node_affinity(const char *name, const char *toollog, uint32_t domid,
				 uint8_t *map, uint32_t bytes, char *why, size_t room)
{
	struct bitmap nodes = { .size = bytes, .map = map };
	char *said = NULL;
	size_t length = 0;
	void *ctx = NULL, *logger;
	struct libxl xl;
	FILE *to;
	int rc;

	if (load(&xl, name, toollog, why, room))
		return -1;
	to = open_memstream(&said, &length);
	if (!to)
		return fail(why, room, "no memory for the messages of libxenlight", "");
	logger = xl.create_logger(to, LEVEL_ERROR, 0);
	rc = logger ? xl.ctx_alloc(&ctx, VERSION, 0, logger) : -1;
	if (rc) {
		fflush(to);
		fail(why, room, "libxenlight gives no context", said);
	} else {
		rc = xl.set_nodeaffinity(ctx, domid, &nodes);
		fflush(to);
		if (rc)
			fail(why, room, "libxenlight refused", said);
		xl.ctx_free(ctx);
	}
	if (logger)
		xl.destroy_logger(logger);
	fclose(to);
	free(said);
	return rc ? -1 : 0;
}
