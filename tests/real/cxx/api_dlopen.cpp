// The C API from C++, opened by dlopen as a plug-in does it: under the interposer it is one client with it, so that it
// knows descriptors of open(2). `api_dlopen DIR`; the library is WEIR_TEST_LIBWEIR.
#include "../c/check.h"
#include <dlfcn.h>
#include <string>
#include <weir.h>

template <typename F> static F *find(void *library, const char *name)
{
	void *found = dlsym(library, name);
	MUST(found != nullptr);
	return reinterpret_cast<F *>(found);
}

int main(int argc, char **argv)
{
	check_begin(argc, argv);
	const char *name = getenv("WEIR_TEST_LIBWEIR");
	MUST(name != nullptr);
	void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
	if (!library)
		puts(dlerror());
	MUST(library != nullptr);
	auto attach = find<decltype(weir_attach)>(library, "weir_attach");
	auto detach = find<decltype(weir_detach)>(library, "weir_detach");
	auto laminate = find<decltype(weir_laminate)>(library, "weir_laminate");
	auto readv = find<decltype(weir_readv)>(library, "weir_readv");
	auto message = find<decltype(weir_message)>(library, "weir_message");

	std::string path = in_dir("f");
	put_text(path.c_str(), "text");
	CHECK(attach(nullptr) == 0, "attached: %s", message());
	int fd = open(path.c_str(), O_RDWR);
	char room[8] = "";
	weir_io io = {nullptr, fd, 0, 1, room, 3, 0};
	CHECK(readv(&io, 1) == 0 && io.result == 3 && std::string(room) == "ext",
	      "a descriptor of open(2): %s", message());
	CHECK(laminate(path.c_str()) == -EBUSY, "it is open: %s", message());
	CHECK(write(fd, "T", 1) == 1 && close(fd) == 0, "the writer goes on and closes it");
	CHECK(laminate(path.c_str()) == 0, "laminated: %s", message());
	CHECK_FAILS(open(path.c_str(), O_WRONLY), EROFS, "read-only");
	CHECK(file_is(path.c_str(), "Text"), "what was written is there");
	CHECK(chdir(check_dir) == 0 && laminate("f") == 0, "a relative path");
	CHECK(detach() == 0 && detach() == -ENOTCONN, "detached");
	CHECK(dlclose(library) == 0 && file_is(path.c_str(), "Text"), "closing it harms nobody");
	return check_end();
}
