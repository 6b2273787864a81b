/*
 * Parallel HDF5 1.14 through the HDF5 connector: collective transfers of files in weir are independent, unless filters or the
 * user demand the exchange; all that a program sees is as without the connector. The script that starts it compares the files with
 * those made elsewhere.
 */
#include "mpi_check.h"
#include <hdf5.h>

enum { ROWS = 64, COLUMNS = 500 };

/* The connector has this file's collective transfers. */
static int is_changed;

static hid_t transfer(int collective)
{
	hid_t list = H5Pcreate(H5P_DATASET_XFER);
	H5Pset_dxpl_mpio(list, collective ? H5FD_MPIO_COLLECTIVE : H5FD_MPIO_INDEPENDENT);
	return list;
}

static int is_collective(hid_t list)
{
	H5FD_mpio_xfer_t mode = H5FD_MPIO_INDEPENDENT;
	return H5Pget_dxpl_mpio(list, &mode) >= 0 && mode == H5FD_MPIO_COLLECTIVE;
}

/* The last transfer with this list made collective calls. */
static int was_collective(hid_t list)
{
	H5D_mpio_actual_io_mode_t mode = H5D_MPIO_NO_COLLECTIVE;
	H5Pget_mpio_actual_io_mode(list, &mode);
	return mode != H5D_MPIO_NO_COLLECTIVE;
}

static int value_of(int round, hsize_t row, hsize_t column)
{
	return (int)(round * 1000000 + row * 1000 + column);
}

static void fill(int round, int *rows, hsize_t first, hsize_t stride)
{
	for (hsize_t r = 0; r < ROWS; r++)
		for (hsize_t c = 0; c < COLUMNS; c++)
			rows[r * COLUMNS + c] = value_of(round, first + r * stride, c);
}

static hid_t create_set(hid_t file, const char *name, int chunked, int deflated)
{
	hsize_t dims[2] = {ROWS * (hsize_t)size, COLUMNS}, chunk[2] = {10, 100};
	hid_t space = H5Screate_simple(2, dims, NULL), create = H5Pcreate(H5P_DATASET_CREATE);
	H5Pset_obj_track_times(create, 0);
	if (chunked)
		H5Pset_chunk(create, 2, chunk);
	if (deflated)
		H5Pset_deflate(create, 1);
	hid_t set = H5Dcreate2(file, name, H5T_NATIVE_INT, space, H5P_DEFAULT, create, H5P_DEFAULT);
	H5Sclose(space);
	H5Pclose(create);
	return set;
}

/* Each process writes every `size`th row, and after a flush reads those of another one. */
static void write_and_read(hid_t file, hid_t set, const char *name, int round, int stays_collective)
{
	hsize_t count[2] = {ROWS, COLUMNS}, stride[2] = {(hsize_t)size, 1}, start[2] = {(hsize_t)rank, 0};
	hsize_t other[2] = {(hsize_t)((rank + 1) % size), 0};
	int *mine = malloc(sizeof(int) * ROWS * COLUMNS), *wanted = malloc(sizeof(int) * ROWS * COLUMNS);
	hid_t space = H5Dget_space(set), memory = H5Screate_simple(2, count, NULL), list = transfer(1);
	MUST(mine && wanted);
	fill(round, mine, start[0], (hsize_t)size);
	H5Sselect_hyperslab(space, H5S_SELECT_SET, start, stride, count, NULL);
	ALL(H5Dwrite(set, H5T_NATIVE_INT, memory, space, list, mine) >= 0, "%s: written", name);
	ALL(was_collective(list) == stays_collective, "%s: by %s calls", name, stays_collective ? "collective" : "independent");
	ALL(is_collective(list), "%s: the list is as it was", name);
	H5Fflush(file, H5F_SCOPE_GLOBAL);
	MPI_Barrier(MPI_COMM_WORLD);
	H5Sselect_hyperslab(space, H5S_SELECT_SET, other, stride, count, NULL);
	memset(mine, 0, sizeof(int) * ROWS * COLUMNS);
	fill(round, wanted, other[0], (hsize_t)size);
	int code = H5Dread(set, H5T_NATIVE_INT, memory, space, list, mine), wrong = 0;
	for (int i = 0; i < ROWS * COLUMNS; i++)
		if (mine[i] != wanted[i] && wrong++ == 0)
			printf("  process %d: the first wrong one is %d: %d, not %d\n", rank, i, mine[i], wanted[i]);
	ALL(code >= 0 && wrong == 0, "%s: read by another process (%d wrong)", name, wrong);
	ALL(is_collective(list), "%s: the list is as it was", name);
	H5Sclose(space);
	H5Sclose(memory);
	H5Pclose(list);
	free(mine);
	free(wanted);
}

/* In each round all write their rows, and read those of the next process without a flush or a barrier: see `connector.c`. */
static void check_steps(hid_t file)
{
	enum { ROUNDS = 30 };
	hsize_t count[2] = {ROWS, COLUMNS}, stride[2] = {(hsize_t)size, 1}, start[2] = {(hsize_t)rank, 0};
	hsize_t other[2] = {(hsize_t)((rank + 1) % size), 0};
	int *mine = malloc(sizeof(int) * ROWS * COLUMNS), *wanted = malloc(sizeof(int) * ROWS * COLUMNS), wrong = 0;
	hid_t set = create_set(file, "steps", 0, 0), list = transfer(1);
	hid_t space = H5Dget_space(set), memory = H5Screate_simple(2, count, NULL);
	MUST(mine && wanted);
	for (int round = 1; round <= ROUNDS; round++) {
		fill(round, mine, start[0], (hsize_t)size);
		H5Sselect_hyperslab(space, H5S_SELECT_SET, start, stride, count, NULL);
		int code = H5Dwrite(set, H5T_NATIVE_INT, memory, space, list, mine);
		H5Sselect_hyperslab(space, H5S_SELECT_SET, other, stride, count, NULL);
		memset(mine, 0, sizeof(int) * ROWS * COLUMNS);
		fill(round, wanted, other[0], (hsize_t)size);
		int read = H5Dread(set, H5T_NATIVE_INT, memory, space, list, mine);
		wrong += code < 0 || read < 0 || memcmp(mine, wanted, sizeof(int) * ROWS * COLUMNS) != 0;
	}
	ALL(wrong == 0, "a collective read finds what the collective write before it wrote: %d of %d wrong", wrong, ROUNDS);
	H5Sclose(space);
	H5Sclose(memory);
	H5Pclose(list);
	H5Dclose(set);
	free(mine);
	free(wanted);
}

static void check_set(hid_t file, const char *name, int chunked, int deflated)
{
	hid_t set = create_set(file, name, chunked, deflated);
	ALL(set >= 0, "%s: created", name);
	write_and_read(file, set, name, 1, deflated || !is_changed);
	write_and_read(file, set, name, 2, deflated || !is_changed);
	H5Dclose(set);
}

static hid_t open_parallel(const char *name, int create, const char *hint, int latest)
{
	hid_t access = H5Pcreate(H5P_FILE_ACCESS);
	MPI_Info info = MPI_INFO_NULL;
	if (hint) {
		MPI_Info_create(&info);
		MPI_Info_set(info, hint, "enable");
	}
	H5Pset_fapl_mpio(access, MPI_COMM_WORLD, info);
	if (latest)
		H5Pset_libver_bounds(access, H5F_LIBVER_LATEST, H5F_LIBVER_LATEST);
	hid_t file = create ? H5Fcreate(name, H5F_ACC_TRUNC, H5P_DEFAULT, access) : H5Fopen(name, H5F_ACC_RDWR, access);
	H5Pclose(access);
	if (hint)
		MPI_Info_free(&info);
	return file;
}

/* Two datasets in one call, in one of which some processes have nothing. */
static void several(hid_t file)
{
	hid_t sets[2] = {create_set(file, "several_a", 0, 0), create_set(file, "several_b", 1, 0)}, list = transfer(1);
	hid_t types[2] = {H5T_NATIVE_INT, H5T_NATIVE_INT}, memories[2], spaces[2];
	hsize_t count[2] = {ROWS, COLUMNS}, start[2] = {ROWS * (hsize_t)rank, 0};
	int *mine = malloc(sizeof(int) * ROWS * COLUMNS);
	MUST(mine);
	fill(3, mine, start[0], 1);
	const void *buffers[2] = {mine, mine};
	for (int i = 0; i < 2; i++) {
		memories[i] = H5Screate_simple(2, count, NULL);
		spaces[i] = H5Dget_space(sets[i]);
		H5Sselect_hyperslab(spaces[i], H5S_SELECT_SET, start, NULL, count, NULL);
	}
	if (rank > 1) {
		H5Sselect_none(memories[1]);
		H5Sselect_none(spaces[1]);
	}
	ALL(H5Dwrite_multi(2, sets, types, memories, spaces, list, buffers) >= 0, "two datasets at once");
	ALL(was_collective(list) == !is_changed, "by calls of that kind");
	for (int i = 0; i < 2; i++) {
		H5Dclose(sets[i]);
		H5Sclose(memories[i]);
		H5Sclose(spaces[i]);
	}
	H5Pclose(list);
	free(mine);
}

static herr_t count_link(hid_t group, const char *name, const H5L_info2_t *info, void *count)
{
	(void)group, (void)name, (void)info;
	++*(int *)count;
	return 0;
}

static void other_objects(hid_t file)
{
	int value = 42, back = 0, links = 0;
	H5R_ref_t reference;
	hid_t group = H5Gcreate2(file, "group", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT), scalar = H5Screate(H5S_SCALAR);
	hid_t attribute = H5Acreate2(group, "attribute", H5T_NATIVE_INT, scalar, H5P_DEFAULT, H5P_DEFAULT);
	ALL(H5Awrite(attribute, H5T_NATIVE_INT, &value) >= 0 && H5Aread(attribute, H5T_NATIVE_INT, &back) >= 0 && back == 42, "an attribute");
	hid_t type = H5Tcopy(H5T_NATIVE_DOUBLE);
	ALL(H5Tcommit2(file, "type", type, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT) >= 0 && H5Tcommitted(type) > 0, "a committed type");
	ALL(H5Lcreate_soft("/contiguous", group, "soft", H5P_DEFAULT, H5P_DEFAULT) >= 0 &&
	    H5Lcreate_hard(file, "chunked", group, "hard", H5P_DEFAULT, H5P_DEFAULT) >= 0 &&
	    H5Lcreate_external("none.h5", "/x", group, "external", H5P_DEFAULT, H5P_DEFAULT) >= 0, "links of three kinds");
	ALL(H5Literate2(group, H5_INDEX_NAME, H5_ITER_INC, NULL, count_link, &links) >= 0 && links == 3, "that are iterated");
	ALL(H5Rcreate_object(file, "/contiguous", H5P_DEFAULT, &reference) >= 0, "a reference");
	hid_t set = H5Ropen_object(&reference, H5P_DEFAULT, H5P_DEFAULT);
	ALL(set >= 0, "that is opened");
	write_and_read(file, set, "by reference", 4, !is_changed);
	H5Dclose(set);
	set = H5Oopen(group, "soft", H5P_DEFAULT);
	write_and_read(file, set, "by a soft link", 5, !is_changed);
	H5Dclose(set);
	H5Rdestroy(&reference);
	H5Aclose(attribute);
	H5Sclose(scalar);
	H5Tclose(type);
	H5Gclose(group);
	/* What only the native connector has. */
	void *handle = NULL;
	H5AC_cache_config_t config = {.version = H5AC__CURR_CACHE_CONFIG_VERSION};
	ALL(H5Fget_vfd_handle(file, H5P_DEFAULT, &handle) >= 0 && handle, "the driver's handle");
	ALL(H5Fget_mdc_config(file, &config) >= 0, "the cache's configuration");
	unsigned long number = 0;
	ALL(H5Fget_fileno(file, &number) >= 0 && H5Fget_name(file, NULL, 0) > 0, "the file's number and name");
	hid_t again = H5Freopen(file);
	set = H5Dopen2(again, "chunked", H5P_DEFAULT);
	write_and_read(again, set, "through a reopened file", 6, !is_changed);
	H5Dclose(set);
	H5Fclose(again);
	hid_t events = H5EScreate();
	size_t left;
	hbool_t failed;
	set = H5Dopen_async(file, "contiguous", H5P_DEFAULT, events);
	ALL(set >= 0 && H5Dclose_async(set, events) >= 0 && H5ESwait(events, H5ES_WAIT_FOREVER, &left, &failed) >= 0 && !failed, "event sets");
	H5ESclose(events);
}

static herr_t note_error(unsigned n, const H5E_error2_t *error, void *text)
{
	if (n == 0)
		snprintf(text, 200, "%s", error->desc);
	return 0;
}

/* The first error of an open that must fail. */
static void check_error(const char *name, int parallel, const char *wanted)
{
	char text[200] = "";
	hid_t access = H5Pcreate(H5P_FILE_ACCESS), file;
	if (parallel)
		H5Pset_fapl_mpio(access, MPI_COMM_WORLD, MPI_INFO_NULL);
	H5E_auto2_t print;
	void *data;
	H5Eget_auto2(H5E_DEFAULT, &print, &data);
	H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
	file = H5Fopen(name, H5F_ACC_RDONLY, access);
	H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, note_error, text);
	H5Eset_auto2(H5E_DEFAULT, print, data);
	H5Pclose(access);
	if (!strstr(text, wanted))
		printf("  got: %s\n", text);
	ALL(file < 0 && strstr(text, wanted), "the error of an open: %s", wanted);
}

/* Chunks that a serial program has not written are not there: HDF5 has them made collectively. */
static void check_serial_file(void)
{
	if (rank == 0) {
		hid_t file = H5Fcreate(in_dir("serial.h5"), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
		H5Dclose(create_set(file, "contiguous", 0, 0));
		hid_t set = create_set(file, "chunked", 1, 0);
		int *all = calloc((size_t)ROWS * (size_t)size * COLUMNS, sizeof(int));
		CHECK(H5Dwrite(set, H5T_NATIVE_INT, H5S_ALL, H5S_ALL, H5P_DEFAULT, all) >= 0, "a serial program writes");
		free(all);
		H5Dclose(set);
		H5Fclose(file);
	}
	MPI_Barrier(MPI_COMM_WORLD);
	hid_t file = open_parallel(in_dir("serial.h5"), 0, NULL, 0);
	hid_t set = H5Dopen2(file, "contiguous", H5P_DEFAULT);
	write_and_read(file, set, "a serial program's contiguous dataset", 1, !is_changed);
	H5Dclose(set);
	set = H5Dopen2(file, "chunked", H5P_DEFAULT);
	write_and_read(file, set, "a serial program's chunks", 1, 1);
	H5Dclose(set);
	H5Fclose(file);
}

/* Another process sees what was written once it is flushed, and follows a single writer. */
static void check_single_writer(void)
{
	hsize_t none[1] = {0}, most[1] = {H5S_UNLIMITED}, chunk[1] = {100}, length;
	hid_t file = -1, set = -1, access = H5Pcreate(H5P_FILE_ACCESS);
	int good = 1, values[100];
	H5Pset_libver_bounds(access, H5F_LIBVER_LATEST, H5F_LIBVER_LATEST);
	if (rank == 0) {
		hid_t space = H5Screate_simple(1, none, most), create = H5Pcreate(H5P_DATASET_CREATE);
		H5Pset_chunk(create, 1, chunk);
		file = H5Fcreate(in_dir("swmr.h5"), H5F_ACC_TRUNC, H5P_DEFAULT, access);
		set = H5Dcreate2(file, "x", H5T_NATIVE_INT, space, H5P_DEFAULT, create, H5P_DEFAULT);
		good = H5Fstart_swmr_write(file) >= 0;
		H5Sclose(space);
		H5Pclose(create);
	}
	ALL(good, "a single writer begins");
	if (rank == 1) {
		file = H5Fopen(in_dir("swmr.h5"), H5F_ACC_RDONLY | H5F_ACC_SWMR_READ, access);
		set = H5Dopen2(file, "x", H5P_DEFAULT);
	}
	for (int step = 0; step < 10; step++) {
		if (rank == 0) {
			hsize_t start = (hsize_t)step * 100, count = 100;
			length = start + count;
			for (int i = 0; i < 100; i++)
				values[i] = (int)start + i;
			hid_t memory = H5Screate_simple(1, &count, NULL);
			H5Dset_extent(set, &length);
			hid_t space = H5Dget_space(set);
			H5Sselect_hyperslab(space, H5S_SELECT_SET, &start, NULL, &count, NULL);
			good &= H5Dwrite(set, H5T_NATIVE_INT, memory, space, H5P_DEFAULT, values) >= 0 && H5Dflush(set) >= 0;
			H5Sclose(space);
			H5Sclose(memory);
		}
		MPI_Barrier(MPI_COMM_WORLD);
		if (rank == 1) {
			int all[1000];
			H5Drefresh(set);
			hid_t space = H5Dget_space(set);
			H5Sget_simple_extent_dims(space, &length, NULL);
			good &= length == (hsize_t)(step + 1) * 100 && H5Dread(set, H5T_NATIVE_INT, H5S_ALL, H5S_ALL, H5P_DEFAULT, all) >= 0;
			for (int i = 0; good && i < (int)length; i++)
				good &= all[i] == i;
			H5Sclose(space);
		}
		MPI_Barrier(MPI_COMM_WORLD);
	}
	ALL(good, "and a reader sees each of ten flushes");
	if (rank < 2) {
		H5Dclose(set);
		H5Fclose(file);
	}
	H5Pclose(access);
}

int main(int argc, char **argv)
{
	mpi_check_begin(argc, argv);
	const char *connectors = getenv("WEIR_TEST_CONNECTORS");
	is_changed = connectors && strcmp(connectors, "changed") == 0;
	/* Of the oldest format, which has no times in it: the script compares it byte by byte. */
	hid_t file = open_parallel(in_dir("plain.h5"), 1, NULL, 0);
	check_set(file, "contiguous", 0, 0);
	check_set(file, "chunked", 1, 0);
	check_set(file, "deflated", 1, 1);
	several(file);
	ALL(H5Fclose(file) >= 0, "a file of the oldest format");
	file = open_parallel(in_dir("file.h5"), 1, NULL, 1);
	ALL(file >= 0, "created by all");
	check_set(file, "contiguous", 0, 0);
	check_set(file, "chunked", 1, 0);
	check_set(file, "deflated", 1, 1);
	several(file);
	check_steps(file);
	ALL(H5Fclose(file) >= 0, "closed by all");
	file = open_parallel(in_dir("file.h5"), 0, NULL, 1);
	ALL(file >= 0, "opened by all");
	hid_t set = H5Dopen2(file, "contiguous", H5P_DEFAULT);
	write_and_read(file, set, "contiguous, opened", 3, !is_changed);
	H5Dclose(set);
	other_objects(file);
	ALL(H5Fclose(file) >= 0, "closed by all");

	int changed = is_changed;
	is_changed = 0;
	file = open_parallel(in_dir("hinted.h5"), 1, "romio_cb_write", 1);
	set = create_set(file, "set", 0, 0);
	hid_t list = transfer(1);
	int *all = calloc((size_t)ROWS * (size_t)size * COLUMNS, sizeof(int));
	ALL(H5Dwrite(set, H5T_NATIVE_INT, H5S_ALL, H5S_ALL, list, all) >= 0 && was_collective(list), "a hint of the user keeps a file's transfers collective");
	free(all);
	H5Pclose(list);
	H5Dclose(set);
	H5Fclose(file);
	is_changed = changed;

	check_serial_file();
	check_single_writer();
	check_error(in_dir("none.h5"), 0, "No such file");
	check_error(in_dir("none/none.h5"), 1, "MPI_File_open failed");
	if (rank == 0) {
		int fd = open(in_dir("text"), O_CREAT | O_WRONLY, 0600);
		MUST(write(fd, "no HDF5\n", 8) == 8 && close(fd) == 0);
	}
	MPI_Barrier(MPI_COMM_WORLD);
	check_error(in_dir("text"), 0, "file signature not found");
	ALL(H5Fis_accessible(in_dir("file.h5"), H5P_DEFAULT) > 0 && H5Fis_accessible(in_dir("text"), H5P_DEFAULT) == 0, "is it a file of HDF5?");
	return mpi_check_end();
}
