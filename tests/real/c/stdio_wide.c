/*
 * Wide-character streams on files: orientation, conversion from and to UTF-8, placing, pushing back, formatted I/O,
 * `ccs=` in the mode and freopen of an oriented stream. glibc's wide streams have their own tables of functions, which is
 * why they are tested apart from stdio_full.c. Uses the C.UTF-8 locale, which Debian always has.
 */
#include "check.h"
#include <locale.h>
#include <wchar.h>

static const wchar_t TEXT[] = L"wide \u00e9\u4e2d\U0001f300 end\n";

static int put_formatted(FILE *f, const wchar_t *format, ...)
{
	va_list args;
	va_start(args, format);
	int n = vfwprintf(f, format, args);
	va_end(args);
	return n;
}

static void write_and_read(void)
{
	wchar_t line[128];
	FILE *f = fopen(in_dir("wide"), "w");
	MUST(f);
	CHECK(fwide(f, 0) == 0 && fwide(f, 1) > 0, "fwide sets the orientation");
	CHECK(fputws(TEXT, f) >= 0, "fputws");
	CHECK(fputwc(L'\u00fc', f) == L'\u00fc' && putwc(L'\n', f) == L'\n', "fputwc, putwc");
	CHECK(fwprintf(f, L"%ls %d %s\n", L"\u03b1\u03b2", 42, "narrow") == 13, "fwprintf");
	CHECK(put_formatted(f, L"%05d\n", 17) == 6, "vfwprintf");
	CHECK(fclose(f) == 0, "fclose");
	CHECK(file_is(in_dir("wide"), "wide \u00e9\u4e2d\U0001f300 end\n\u00fc\n\u03b1\u03b2 42 narrow\n00017\n"), "UTF-8 in the file");
	f = fopen(in_dir("wide"), "r");
	MUST(f);
	CHECK(fgetws(line, 128, f) && !wcscmp(line, TEXT), "fgetws");
	CHECK(fgetwc(f) == L'\u00fc' && ungetwc(L'\u00df', f) == L'\u00df' && getwc(f) == L'\u00df' && getwc(f) == L'\n', "ungetwc");
	int number = 0;
	wchar_t word[16];
	CHECK(fwscanf(f, L"%15ls %d", word, &number) == 2 && !wcscmp(word, L"\u03b1\u03b2") && number == 42, "fwscanf");
	CHECK(fwide(f, 0) > 0, "the stream is wide");
	CHECK(fseek(f, 0, SEEK_SET) == 0 && fgetwc(f) == L'w', "fseek on a wide stream");
	while (fgetwc(f) != WEOF) {
	}
	CHECK(feof(f) && !ferror(f), "WEOF at the end");
	fclose(f);
}

static void long_text(void)
{
	FILE *f = fopen(in_dir("long"), "w+");
	long at = 0;
	int wrong = 0;
	MUST(f);
	for (int i = 0; i < 200000; i++) {
		if (i == 123456)
			at = ftell(f);
		fputwc(i % 3 ? L'a' + i % 26 : 0x400 + i % 256, f);
	}
	rewind(f);
	for (int i = 0; i < 200000; i++)
		wrong += fgetwc(f) != (wint_t)(i % 3 ? L'a' + i % 26 : 0x400 + i % 256);
	CHECK(wrong == 0, "200,000 characters, mixed widths");
	CHECK(fseek(f, at, SEEK_SET) == 0 && fgetwc(f) == 0x400 + 123456 % 256, "back to where ftell was");
	CHECK(fseek(f, 0, SEEK_END) == 0 && fputws(L"\u00e9nd", f) >= 0, "write at the end after reading");
	fclose(f);
	size_t length;
	char *data = get_file(in_dir("long"), &length);
	CHECK(data && length == 200000 + 66667 + 4 && !memcmp(data + length - 4, "\u00e9nd", 4), "size and tail");
	free(data);
}

static void modes_and_errors(void)
{
	FILE *f = fopen(in_dir("ccs"), "w,ccs=UTF-8");
	CHECK(f && fputws(L"\u20ac", f) >= 0 && fclose(f) == 0 && file_is(in_dir("ccs"), "\u20ac"), "fopen with ccs=");
	f = fopen(in_dir("re_a"), "w");
	MUST(f);
	fputws(L"a", f);
	f = freopen(in_dir("re_b"), "w", f);
	CHECK(f && fwide(f, 0) == 0 && fputs("narrow", f) >= 0 && fclose(f) == 0, "freopen forgets the orientation");
	CHECK(file_is(in_dir("re_a"), "a") && file_is(in_dir("re_b"), "narrow"), "both files");
	put_file(in_dir("bad"), "ab\xff\xfe", 4);
	f = fopen(in_dir("bad"), "r");
	MUST(f);
	CHECK(fgetwc(f) == L'a' && fgetwc(f) == L'b', "good bytes first");
	CHECK(fgetwc(f) == WEOF && errno == EILSEQ && ferror(f), "invalid UTF-8: EILSEQ");
	fclose(f);
	f = fopen(in_dir("append"), "a");
	MUST(f);
	fputws(L"\u00e91", f);
	fclose(f);
	f = fopen(in_dir("append"), "a+");
	MUST(f);
	fputws(L"\u00e92", f);
	fclose(f);
	CHECK(file_is(in_dir("append"), "\u00e91\u00e92"), "wide append");
	int fd = open(in_dir("fd"), O_RDWR | O_CREAT, 0600);
	f = fdopen(fd, "w+");
	CHECK(f && setvbuf(f, NULL, _IONBF, 0) == 0 && fputws(L"\u00fcx", f) >= 0 && file_is(in_dir("fd"), "\u00fcx"),
	      "fdopen, unbuffered, wide");
	if (f)
		fclose(f);
}

int main(int argc, char **argv)
{
	check_begin(argc, argv);
	MUST(setlocale(LC_ALL, "C.UTF-8"));
	write_and_read();
	long_text();
	modes_and_errors();
	return check_end();
}
