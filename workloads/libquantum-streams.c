/* Debian's shared libquantum is stripped, and most of its time is spent in functions that only a
 * symbol table names (the bodies of its parallel loops). Its static archive has their names, but refers
 * to these two streams in a way a shared library may not: here they are the library's own. */
void *fdopen(int fd, const char *mode);

__attribute__((visibility("hidden"))) void *stdout, *stderr;

__attribute__((constructor)) static void open_streams(void)
{
	stdout = fdopen(1, "w");
	stderr = fdopen(2, "w");
}
