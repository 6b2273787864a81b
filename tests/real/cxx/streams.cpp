/*
 * C++ streams on files: fstream in its modes, positions, formatted and raw I/O, locale-free text, own buffers, wide streams and
 * std::filesystem. libstdc++ reads and writes through its own symbols (read, write, writev, fopen), not through stdio's.
 */
#include "../c/check.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

namespace fs = std::filesystem;

static std::string slurp(const std::string &path)
{
	std::ifstream in(path, std::ios::binary);
	return {std::istreambuf_iterator<char>(in), {}};
}

static void text()
{
	const std::string path = in_dir("text");
	std::ofstream out(path);
	CHECK(out.is_open(), "ofstream opens");
	for (int i = 0; i < 20000; i++)
		out << i << ' ' << i * 0.5 << " word" << i << '\n';
	out.close();
	CHECK(out.good(), "close");
	std::ifstream in(path);
	int number, wrong = 0, count = 0;
	double half;
	std::string word;
	while (in >> number >> half >> word)
		wrong += number != count || half != count * 0.5 || word != "word" + std::to_string(count), count++;
	CHECK(count == 20000 && wrong == 0 && in.eof(), "20,000 lines read back by operator>>");
	in.clear();
	in.seekg(0);
	std::string line;
	CHECK(std::getline(in, line) && line == "0 0 word0", "clear, seekg, getline");
	in.unget();
	CHECK(in.get() == '\n' && in.peek() == '1' && in.putback('\n') && in.get() == '\n', "unget, peek, putback");
	CHECK(in.ignore(100, '\n') && std::getline(in, line) && line == "2 1 word2", "ignore");
}

static void modes()
{
	const std::string path = in_dir("modes");
	CHECK(!std::ifstream(path).is_open(), "ifstream of an absent file");
	CHECK(!std::fstream(path, std::ios::in | std::ios::out).is_open(), "in|out does not create");
	std::ofstream(path) << "one";
	std::ofstream(path, std::ios::app) << "+two";
	CHECK(slurp(path) == "one+two", "app");
	std::fstream both(path, std::ios::in | std::ios::out);
	both.seekp(3);
	both << '-';
	both.seekg(0);
	std::string all;
	both >> all;
	CHECK(all == "one-two", "in|out overwrites and reads");
	both.clear();
	both.seekp(0, std::ios::end);
	CHECK(both.tellp() == std::streampos(7), "tellp at the end");
	both << "!" << std::flush;
	CHECK(slurp(path) == "one-two!", "flush is seen through another stream");
	std::ofstream ate(path, std::ios::in | std::ios::ate);
	CHECK(ate.tellp() == std::streampos(8), "ate");
	ate.close();
	std::ofstream(path, std::ios::trunc);
	CHECK(slurp(path).empty(), "trunc");
	std::ofstream closed;
	closed.open(in_dir("no/such"));
	CHECK(closed.fail(), "open below an absent directory fails");
}

static void binary()
{
	const std::string path = in_dir("binary");
	std::vector<unsigned char> data(6 << 20), back(data.size());
	pattern_fill(data.data(), data.size(), 1, 0);
	std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary | std::ios::trunc);
	file.write(reinterpret_cast<char *>(data.data()), 1000);
	file.write(reinterpret_cast<char *>(data.data()) + 1000, static_cast<std::streamsize>(data.size() - 1000));
	file.seekg(0);
	file.read(reinterpret_cast<char *>(back.data()), static_cast<std::streamsize>(back.size()));
	CHECK(file.gcount() == static_cast<std::streamsize>(data.size()) && data == back, "6 MiB written and read");
	file.read(reinterpret_cast<char *>(back.data()), 1);
	CHECK(file.eof() && file.gcount() == 0, "then the end");
	file.clear();
	file.seekp(1 << 20);
	file.write("zz", 2);
	file.seekg((1 << 20) - 1);
	CHECK(file.get() == data[(1 << 20) - 1] && file.get() == 'z', "written over in the middle");
	file.rdbuf()->pubseekoff(-2, std::ios::end);
	CHECK(file.get() == data[data.size() - 2], "pubseekoff from the end");
	file.close();
	std::ofstream unbuffered;
	unbuffered.rdbuf()->pubsetbuf(nullptr, 0);
	unbuffered.open(in_dir("unbuffered"));
	unbuffered << "now";
	CHECK(slurp(in_dir("unbuffered")) == "now", "an unbuffered stream is seen at once");
	std::wofstream wide(in_dir("wide"));
	wide << L"wide " << 7;
	wide.close();
	std::wifstream wide_in(in_dir("wide"));
	std::wstring word;
	int seven = 0;
	CHECK(wide_in >> word >> seven && word == L"wide" && seven == 7, "wide streams");
	std::ofstream copy(in_dir("copy"), std::ios::binary);
	std::ifstream from(path, std::ios::binary);
	copy << from.rdbuf();
	copy.close();
	CHECK(slurp(in_dir("copy")) == slurp(path), "a stream copied through its buffer");
}

static void filesystem()
{
	const fs::path dir = fs::path(check_dir) / "tree";
	CHECK(fs::create_directories(dir / "a/b/c"), "create_directories");
	std::ofstream(dir / "a/file") << "12345";
	std::ofstream(dir / "a/b/other") << "1";
	CHECK(fs::exists(dir / "a/file") && fs::is_regular_file(dir / "a/file") && fs::file_size(dir / "a/file") == 5, "exists, file_size");
	fs::create_symlink("file", dir / "a/link");
	CHECK(fs::is_symlink(dir / "a/link") && fs::read_symlink(dir / "a/link") == "file", "symlinks");
	std::vector<std::string> names;
	for (const auto &entry : fs::recursive_directory_iterator(dir))
		names.push_back(entry.path().lexically_relative(dir).string());
	std::sort(names.begin(), names.end());
	CHECK((names == std::vector<std::string>{"a", "a/b", "a/b/c", "a/b/other", "a/file", "a/link"}), "recursive_directory_iterator");
	fs::copy_file(dir / "a/file", dir / "copied");
	CHECK(slurp(dir / "copied") == "12345", "copy_file");
	fs::copy(dir / "a", dir / "tree2", fs::copy_options::recursive | fs::copy_options::copy_symlinks);
	CHECK(slurp(dir / "tree2/b/other") == "1" && fs::is_symlink(dir / "tree2/link"), "copy, recursive");
	fs::rename(dir / "tree2", dir / "moved");
	fs::resize_file(dir / "copied", 2);
	CHECK(slurp(dir / "copied") == "12" && fs::exists(dir / "moved/file"), "rename, resize_file");
	fs::permissions(dir / "copied", fs::perms::owner_read);
	CHECK((fs::status(dir / "copied").permissions() & fs::perms::all) == fs::perms::owner_read, "permissions");
	fs::create_hard_link(dir / "copied", dir / "hard");
	CHECK(fs::hard_link_count(dir / "hard") == 2 && fs::equivalent(dir / "hard", dir / "copied"), "hard links");
	auto when = fs::file_time_type::clock::now() - std::chrono::hours(1);
	fs::last_write_time(dir / "hard", when);
	CHECK(fs::last_write_time(dir / "copied") == when, "last_write_time");
	CHECK(fs::space(dir).available > 0, "space");
	CHECK(fs::remove_all(dir) > 8 && !fs::exists(dir), "remove_all");
	std::error_code error;
	CHECK(!fs::remove(dir, error) && !error, "remove of nothing");
}

int main(int argc, char **argv)
{
	check_begin(argc, argv);
	text();
	modes();
	binary();
	filesystem();
	return check_end();
}
