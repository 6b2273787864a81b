/*
 * Drain state of libweir: `drains state PATH`, `drains drain PATH MILLISECONDS`; `drains hostile` gives what must be refused;
 * `drains begin SOURCE DESTINATION` begins a transfer, and ends.
 * Prints the step or the code, then the reason or the error.
 */
#include "check.h"
#include <weir.h>

static int hostile(void)
{
	struct weir_drain_state state;
	CHECK(weir_drain_state("/weir/f", &state) == -ENOTCONN, "not attached: %s", weir_message());
	MUST(weir_attach(NULL) == 0);
	CHECK(weir_drain_state(NULL, &state) == -EFAULT && weir_drain(NULL, 0) == -EFAULT, "no path");
	CHECK(weir_drain_state("/weir/f", NULL) == -EFAULT, "nowhere to put it");
	CHECK(weir_drain_state("", &state) == -ENOENT, "an empty path");
	CHECK(weir_drain("/weir/../f", 0) == -EINVAL, "..");
	CHECK(weir_drain("/weir", -2) == -EINVAL, "no such time");
	CHECK(weir_drain_state("/etc/passwd", &state) == -EXDEV, "elsewhere: %s", weir_message());
	CHECK(weir_drain("/etc/passwd", 0) == -EXDEV, "nor this");
	return check_end();
}

int main(int argc, char **argv)
{
	struct weir_drain_state state;
	int code;
	if (argc == 2)
		return hostile();
	MUST(argc >= 3 && weir_attach(NULL) == 0);
	if (!strcmp(argv[1], "state")) {
		code = weir_drain_state(argv[2], &state);
		printf("%d %s\n", code < 0 ? code : state.step, code < 0 ? weir_strerror(code) : state.reason);
	} else if (!strcmp(argv[1], "begin")) {
		struct weir_transfer file = {argv[2], argv[3], WEIR_TRANSFER_COPY, 0};
		uint64_t transfer;
		MUST(weir_transfer_start(&file, 1, &transfer) == 0);
	} else {
		code = weir_drain(argv[2], atoi(argv[3]));
		printf("%d %s\n", code, code < 0 ? weir_strerror(code) : "");
	}
	return 0;
}
