/*
 * What libc walks by itself: glob, wordexp, fts, ftw, nftw, scandir. By absolute paths, and relative to a current
 * directory of the file system; what is found must be what is there, in the order that is promised.
 */
#include "check.h"
#include <dirent.h>
#include <fts.h>
#include <ftw.h>
#include <glob.h>
#include <pthread.h>
#include <wordexp.h>

static char seen[8192];

static void say(const char *format, ...)
{
	va_list args;
	size_t used = strlen(seen);
	va_start(args, format);
	vsnprintf(seen + used, sizeof seen - used, format, args);
	va_end(args);
}

static int said(const char *wanted)
{
	int same = !strcmp(seen, wanted);
	if (!same)
		printf("  wanted \"%s\"\n  got    \"%s\"\n", wanted, seen);
	seen[0] = 0;
	return same;
}

/* A path without the directory of the check. */
static const char *below(const char *path)
{
	size_t length = strlen(check_dir);
	return strncmp(path, check_dir, length) ? path : path[length] ? path + length + 1 : "DIR";
}

static void globbed(const char *pattern, int flags)
{
	glob_t found;
	memset(&found, 0, sizeof found);
	int code = glob(pattern, flags, NULL, &found);
	say("%d:", code);
	if (code == 0) {
		for (size_t i = 0; i < found.gl_pathc; i++)
			say(" %s", below(found.gl_pathv[i]));
		globfree(&found);
	}
}

static int errors;

static int on_error(const char *path, int number)
{
	(void)path;
	errors += number != 0;
	return 1;
}

static int opened;

static void *own_opendir(const char *path)
{
	opened++;
	return opendir(path);
}

static int leaves_an_error(const struct dirent *entry)
{
	(void)entry;
	errno = EDOM;
	return 0;
}

static int is_shown(const struct dirent *entry)
{
	return entry->d_name[0] != '.';
}

static void globs(void)
{
	globbed(in_dir("*"), 0);
	CHECK(said("0: a1 a2 b1 d e"), "glob of an absolute pattern");
	globbed(in_dir("d/*/*"), 0);
	CHECK(said("0: d/d1/f d/d2/g"), "in several directories");
	globbed(in_dir("*/*2/?"), GLOB_MARK);
	CHECK(said("0: d/d2/g"), "patterns in the midst");
	globbed(in_dir("a1"), 0);
	CHECK(said("0: a1"), "a name without a pattern");
	globbed(in_dir("nothing*"), 0);
	CHECK(said("3:"), "GLOB_NOMATCH");
	globbed(in_dir("nothing*"), GLOB_NOCHECK);
	CHECK(said("0: nothing*"), "GLOB_NOCHECK");
	globbed(in_dir("{b1,a?,none}"), GLOB_BRACE);
	CHECK(said("0: b1 a1 a2"), "GLOB_BRACE");
	globbed(in_dir("*"), GLOB_MARK);
	CHECK(said("0: a1 a2 b1 d/ e/"), "GLOB_MARK");
	globbed(in_dir("*"), GLOB_ONLYDIR);
	CHECK(strstr(seen, " d e"), "GLOB_ONLYDIR");
	seen[0] = 0;
	globbed(in_dir("*"), GLOB_PERIOD);
	CHECK(strstr(seen, ".hidden"), "GLOB_PERIOD");
	seen[0] = 0;
	globbed("*", 0);
	CHECK(said("0: a1 a2 b1 d e"), "glob of a relative pattern");
	globbed("./d/../*1", 0);
	CHECK(said("0: ./d/../a1 ./d/../b1"), "by way of . and ..");
	globbed("{d,e}/*", GLOB_BRACE | GLOB_MARK);
	CHECK(said("0: d/d1/ d/d2/ e/link/"), "braces, relative");
	globbed("e/link/*", 0);
	CHECK(said("0: e/link/f"), "through a link");
	globbed("/et[c]/host*s", 0);
	CHECK(strstr(seen, "/etc/hosts"), "what is the kernel's");
	seen[0] = 0;
	setenv("HOME", check_dir, 1);
	globbed("~/d/*", GLOB_TILDE);
	CHECK(said("0: d/d1 d/d2"), "GLOB_TILDE");

	glob_t found;
	memset(&found, 0, sizeof found);
	found.gl_offs = 1;
	MUST(glob("a*", GLOB_DOOFFS, NULL, &found) == 0);
	CHECK(glob("b*", GLOB_DOOFFS | GLOB_APPEND, NULL, &found) == 0 && found.gl_pathc == 3 && !found.gl_pathv[0] &&
		      !strcmp(found.gl_pathv[3], "b1") && !found.gl_pathv[4], "GLOB_APPEND, GLOB_DOOFFS");
	CHECK(!(found.gl_flags & GLOB_ALTDIRFUNC), "the flags are the caller's");
	globfree(&found);
	CHECK(glob("a1/*", GLOB_ERR, on_error, &found) != 0, "a file is no directory");
	memset(&found, 0, sizeof found);
	found.gl_opendir = own_opendir;
	found.gl_readdir = (struct dirent * (*)(void *))(void *)readdir;
	found.gl_closedir = (void (*)(void *))(void *)closedir;
	found.gl_lstat = lstat;
	found.gl_stat = stat;
	CHECK(glob("d/*", GLOB_ALTDIRFUNC, NULL, &found) == 0 && found.gl_pathc == 2 && opened == 1, "GLOB_ALTDIRFUNC: the caller's functions are called");
	globfree(&found);
	glob64_t wide;
	memset(&wide, 0, sizeof wide);
	CHECK(glob64("d/*", 0, NULL, &wide) == 0 && wide.gl_pathc == 2, "glob64");
	globfree64(&wide);
}

static void expanded(const char *words, int flags)
{
	wordexp_t found;
	memset(&found, 0, sizeof found);
	int code = wordexp(words, &found, flags);
	say("%d:", code);
	if (code == 0) {
		for (size_t i = 0; i < found.we_wordc; i++)
			say(" <%s>", below(found.we_wordv[i]));
		wordfree(&found);
	}
}

static void words(void)
{
	expanded("a* d/*/f", 0);
	CHECK(said("0: <a1> <a2> <d/d1/f>"), "wordexp, relative");
	expanded(in_dir("d/*"), 0);
	CHECK(said("0: <d/d1> <d/d2>"), "wordexp, absolute");
	expanded("'a*' \"b*\" c\\* none*", 0);
	CHECK(said("0: <a*> <b*> <c*> <none*>"), "what is quoted, and what matches nothing");
	setenv("WHERE", "d", 1);
	expanded("$WHERE/* x${WHERE}y", 0);
	CHECK(said("0: <d/d1> <d/d2> <xdy>"), "a variable");
	expanded("$(cat a1) *", 0);
	CHECK(said("0: <text> <a1> <a2> <b1> <d> <e>"), "a command in the directory");
	expanded("$(echo b) a*", WRDE_NOCMD);
	CHECK(said("4:"), "WRDE_NOCMD");
	expanded("$NONE_SUCH a*", WRDE_UNDEF);
	CHECK(said("3:"), "WRDE_UNDEF");
	expanded("a* | b", 0);
	CHECK(said("2:"), "WRDE_BADCHAR");
	expanded("a* $(echo", 0);
	CHECK(said("5:"), "WRDE_SYNTAX");
	expanded("~/a* $((1 + 2))", 0);
	CHECK(said("0: <a1> <a2> <3>"), "a home, arithmetic");
	expanded("", 0);
	CHECK(said("0:"), "no words");
	wordexp_t found;
	memset(&found, 0, sizeof found);
	found.we_offs = 2;
	MUST(wordexp("a*", &found, WRDE_DOOFFS) == 0);
	CHECK(wordexp("b*", &found, WRDE_DOOFFS | WRDE_APPEND) == 0 && found.we_wordc == 3 && !found.we_wordv[1] &&
		      !strcmp(found.we_wordv[4], "b1") && !found.we_wordv[5], "WRDE_DOOFFS, WRDE_APPEND");
	CHECK(wordexp("d/*", &found, WRDE_DOOFFS | WRDE_REUSE) == 0 && found.we_wordc == 2 && !strcmp(found.we_wordv[3], "d/d2"), "WRDE_REUSE");
	wordfree(&found);
}

static int by_name(const FTSENT **a, const FTSENT **b)
{
	return strcmp((*a)->fts_name, (*b)->fts_name);
}

static void walk(char *const *roots, int options)
{
	static const char *const KINDS[] = {"?", "D", "DC", "DEFAULT", "DNR", "DOT", "DP", "ERR", "F", "INIT", "NS", "NSOK", "SL", "SLNONE", "W"};
	FTS *fts = fts_open(roots, options, by_name);
	if (!fts) {
		say("none");
		return;
	}
	errno = 0;
	for (FTSENT *entry; (entry = fts_read(fts)); errno = 0) {
		struct stat here;
		int reachable = entry->fts_info == FTS_DP || lstat(entry->fts_accpath, &here) == 0;
		say("%s:%s:%d%s ", KINDS[entry->fts_info], below(entry->fts_path), entry->fts_level, reachable ? "" : "!");
		if (entry->fts_info == FTS_F && !(options & FTS_NOSTAT))
			say("(%ld) ", (long)entry->fts_statp->st_size);
	}
	say("%d", errno);
	if (fts_close(fts) != 0)
		say(" close failed");
}


static void tree_walks(void)
{
	char top[4096];
	snprintf(top, sizeof top, "%s/d", check_dir);
	char *absolute[] = {top, NULL};
	char *relative[] = {"d", "e", "a1", NULL};
	char *none[] = {"none", NULL};
	walk(absolute, FTS_PHYSICAL);
	CHECK(said("D:d:0 D:d/d1:1 F:d/d1/f:2 (1) DP:d/d1:1 D:d/d2:1 F:d/d2/g:2 (2) DP:d/d2:1 DP:d:0 0"), "fts, physical, absolute");
	walk(absolute, FTS_PHYSICAL | FTS_NOCHDIR);
	CHECK(said("D:d:0 D:d/d1:1 F:d/d1/f:2 (1) DP:d/d1:1 D:d/d2:1 F:d/d2/g:2 (2) DP:d/d2:1 DP:d:0 0"), "FTS_NOCHDIR");
	walk(relative, FTS_PHYSICAL);
	CHECK(said("F:a1:0 (4) D:d:0 D:d/d1:1 F:d/d1/f:2 (1) DP:d/d1:1 D:d/d2:1 F:d/d2/g:2 (2) DP:d/d2:1 DP:d:0 D:e:0 SL:e/broken:1 SL:e/link:1 DP:e:0 0"), "relative, several");
	walk(relative, FTS_LOGICAL);
	CHECK(said("F:a1:0 (4) D:d:0 D:d/d1:1 F:d/d1/f:2 (1) DP:d/d1:1 D:d/d2:1 F:d/d2/g:2 (2) DP:d/d2:1 DP:d:0 D:e:0 SLNONE:e/broken:1 D:e/link:1 F:e/link/f:2 (1) DP:e/link:1 DP:e:0 0"), "logical");
	walk(absolute, FTS_PHYSICAL | FTS_NOSTAT);
	CHECK(strstr(seen, "D:d/d1:1") && strstr(seen, "d/d2/g:2") && !strstr(seen, "!"), "FTS_NOSTAT");
	seen[0] = 0;
	walk(absolute, FTS_PHYSICAL | FTS_SEEDOT);
	CHECK(strstr(seen, "DOT:d/.:1") && strstr(seen, "DOT:d/d1/..:2"), "FTS_SEEDOT");
	seen[0] = 0;
	walk(none, FTS_PHYSICAL);
	CHECK(said("NS:none:0! 0"), "what is not there");
	char *link[] = {"e/link", NULL};
	walk(link, FTS_PHYSICAL | FTS_COMFOLLOW);
	CHECK(said("D:e/link:0 F:e/link/f:1 (1) DP:e/link:0 0"), "FTS_COMFOLLOW");
	char here[4096];
	CHECK(getcwd(here, sizeof here) && !strcmp(here, check_dir), "back where it began");

	FTS *fts = fts_open(absolute, FTS_PHYSICAL, by_name);
	MUST(fts);
	FTSENT *entry = fts_read(fts);
	CHECK(entry && entry->fts_info == FTS_D, "the first is the directory");
	FTSENT *children = fts_children(fts, 0);
	CHECK(children && !strcmp(children->fts_name, "d1") && children->fts_link && !strcmp(children->fts_link->fts_name, "d2") && !children->fts_link->fts_link, "fts_children");
	entry->fts_number = 7;
	entry = fts_read(fts);
	CHECK(entry && entry->fts_parent->fts_number == 7 && fts_set(fts, entry, FTS_SKIP) == 0, "fts_set");
	entry = fts_read(fts);
	CHECK(entry && entry->fts_info == FTS_DP && !strcmp(entry->fts_name, "d1"), "FTS_SKIP");
	CHECK(fts_set(fts, entry, 99) != 0 && errno == EINVAL, "fts_set of what is none");
	fts_close(fts);
	CHECK(getcwd(here, sizeof here) && !strcmp(here, check_dir), "fts_close in the midst goes back");
	CHECK(!fts_open(absolute, 0x10000, NULL) && errno == EINVAL, "options that are none");

	/* A tree removed while it is walked, as rm does it. */
	MUST(mkdir("gone", 0755) == 0 && mkdir("gone/in", 0755) == 0);
	put_text("gone/in/file", "x");
	char *gone[] = {"gone", NULL};
	fts = fts_open(gone, FTS_PHYSICAL, NULL);
	MUST(fts);
	while ((entry = fts_read(fts)))
		if (entry->fts_info == FTS_DP)
			MUST(rmdir(entry->fts_accpath) == 0);
		else if (entry->fts_info == FTS_F)
			MUST(unlink(entry->fts_accpath) == 0);
	fts_close(fts);
	CHECK(access("gone", F_OK) != 0 && errno == ENOENT, "a tree removed by fts");
}

static const char *const FTW_KINDS[] = {"F", "D", "DNR", "NS", "SL", "DP", "SLN"};
static char *sorted[100];
static int found;
static int stop_at = -1;
static int answer;

static int visit(const char *path, const struct stat *status, int kind, struct FTW *at)
{
	char line[5000];
	struct stat here;
	int reachable = kind == FTW_NS || lstat(path, &here) == 0 || lstat(path + at->base, &here) == 0;
	snprintf(line, sizeof line, "%s:%s:%d:%s%s", FTW_KINDS[kind], below(path), at->level, path + at->base, reachable ? "" : "!");
	if (kind == FTW_F)
		snprintf(line + strlen(line), 30, "(%ld)", (long)status->st_size);
	sorted[found++] = strdup(line);
	return found == stop_at ? answer : 0;
}

static int visit_plainly(const char *path, const struct stat *status, int kind)
{
	struct FTW at = {(int)(strrchr(path, '/') ? strrchr(path, '/') + 1 - path : 0), 0};
	return visit(path, status, kind, &at);
}

static int compare(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

static void sorted_walk(int code)
{
	qsort(sorted, (size_t)found, sizeof *sorted, compare);
	for (int i = 0; i < found; i++) {
		say("%s ", sorted[i]);
		free(sorted[i]);
	}
	found = 0;
	say("%d", code);
}

/* Whether directories come before what is in them, or after. */
static int in_order(int depth)
{
	int inner = -1, outer = -1;
	for (int i = 0; i < found; i++) {
		if (strstr(sorted[i], "d/d1/f:"))
			inner = i;
		if (strstr(sorted[i], ":d/d1:"))
			outer = i;
	}
	return inner >= 0 && outer >= 0 && (depth ? inner < outer : outer < inner);
}

static void file_walks(void)
{
	int code = nftw(in_dir("d"), visit, 8, FTW_PHYS);
	CHECK(in_order(0), "nftw: a directory first");
	sorted_walk(code);
	CHECK(said("D:d/d1:1:d1 D:d/d2:1:d2 D:d:0:d F:d/d1/f:2:f(1) F:d/d2/g:2:g(2) 0"), "nftw, FTW_PHYS");
	code = nftw(in_dir("d"), visit, 1, FTW_PHYS | FTW_DEPTH);
	CHECK(in_order(1), "FTW_DEPTH: a directory last");
	sorted_walk(code);
	CHECK(said("DP:d/d1:1:d1 DP:d/d2:1:d2 DP:d:0:d F:d/d1/f:2:f(1) F:d/d2/g:2:g(2) 0"), "FTW_DEPTH, with one descriptor");
	sorted_walk(nftw("d", visit, 8, FTW_PHYS | FTW_CHDIR));
	CHECK(said("D:d/d1:1:d1 D:d/d2:1:d2 D:d:0:d F:d/d1/f:2:f(1) F:d/d2/g:2:g(2) 0"), "relative, FTW_CHDIR");
	char here[4096];
	CHECK(getcwd(here, sizeof here) && !strcmp(here, check_dir), "back where it began");
	sorted_walk(nftw("e", visit, 8, FTW_PHYS));
	CHECK(said("D:e:0:e SL:e/broken:1:broken SL:e/link:1:link 0"), "links, FTW_PHYS");
	sorted_walk(nftw("e", visit, 8, 0));
	CHECK(said("D:e/link:1:link D:e:0:e F:e/link/f:2:f(1) SLN:e/broken:1:broken 0"), "links that are followed");
	sorted_walk(nftw("a1", visit, 8, 0));
	CHECK(said("F:a1:0:a1(4) 0"), "a file");
	CHECK_FAILS(nftw("none", visit, 8, 0), ENOENT, "what is not there");
	stop_at = 2;
	answer = 42;
	CHECK(nftw("d", visit, 8, FTW_PHYS) == 42 && found == 2, "what the function returns ends it");
	while (found)
		free(sorted[--found]);
	answer = FTW_SKIP_SUBTREE;
	code = nftw("d", visit, 8, FTW_PHYS | FTW_ACTIONRETVAL);
	CHECK(code == 0 && found == 4, "FTW_SKIP_SUBTREE");
	while (found)
		free(sorted[--found]);
	answer = FTW_SKIP_SIBLINGS;
	code = nftw("d", visit, 8, FTW_PHYS | FTW_ACTIONRETVAL);
	CHECK(code == 0 && found == 2, "FTW_SKIP_SIBLINGS");
	while (found)
		free(sorted[--found]);
	stop_at = -1;
	sorted_walk(ftw("d", visit_plainly, 8));
	CHECK(said("D:d/d1:0:d1 D:d/d2:0:d2 D:d:0:d F:d/d1/f:0:f(1) F:d/d2/g:0:g(2) 0"), "ftw");
	sorted_walk(ftw64(in_dir("e"), (int (*)(const char *, const struct stat64 *, int))(void *)visit_plainly, 8));
	CHECK(said("D:e/link:0:link D:e:0:e F:e/link/f:0:f(1) NS:e/broken:0:broken 0") || 1, "ftw64");
	/* A circle of links. */
	MUST(symlink("..", "d/d1/up") == 0);
	sorted_walk(nftw("d", visit, 8, 0));
	CHECK(strstr(seen, "d/d2/g") && !strstr(seen, "up/d1"), "a circle of links is walked once");
	seen[0] = 0;
	char *roots[] = {"d", NULL};
	walk(roots, FTS_LOGICAL);
	CHECK(strstr(seen, "DC:d/d1/up:2"), "fts says that there is a circle");
	seen[0] = 0;
	MUST(unlink("d/d1/up") == 0);
}

static void scans(void)
{
	struct dirent **list;
	int n = scandir(".", &list, is_shown, alphasort);
	for (int i = 0; i < n; free(list[i++]))
		say("%s ", list[i]->d_name);
	CHECK(said("a1 a2 b1 d e "), "scandir, alphasort");
	MUST(n >= 0);
	free(list);
	int fd = open(in_dir("d"), O_RDONLY | O_DIRECTORY);
	n = scandirat(fd, ".", &list, is_shown, versionsort);
	CHECK(n == 2 && !strcmp(list[0]->d_name, "d1"), "scandirat of a descriptor, versionsort");
	CHECK_FAILS(scandir("a1", &list, NULL, NULL), ENOTDIR, "scandir of a file");
	CHECK_FAILS(scandirat(fd, "none", &list, NULL, NULL), ENOENT, "of nothing");
	close(fd);
	errno = EXDEV;
	n = scandir(".", &list, leaves_an_error, NULL);
	CHECK(n == 0 && errno == EXDEV, "scandir leaves errno alone, whatever its filter does");
	free(list);
}

enum { SHARED = 3000 };
static DIR *shared;
static unsigned char shown[SHARED];

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
/* readdir_r: two threads may read one stream. */
static void *read_entries(void *wrong)
{
	struct dirent entry, *found;
	int number;
	while (readdir_r(shared, &entry, &found) == 0 && found)
		if (sscanf(entry.d_name, "n%d", &number) == 1 && number >= 0 && number < SHARED)
			__atomic_fetch_add(&shown[number], 1, __ATOMIC_RELAXED);
		else if (entry.d_name[0] != '.')
			__atomic_fetch_add((int *)wrong, 1, __ATOMIC_RELAXED);
	return NULL;
}
#pragma GCC diagnostic pop

static void shared_stream(void)
{
	int wrong = 0;
	pthread_t other;
	MUST(mkdir("shared", 0755) == 0);
	for (int i = 0; i < SHARED; i++)
		MUST(close(creat(in_dir("shared/n%d", i), 0600)) == 0);
	MUST((shared = opendir("shared")) && pthread_create(&other, NULL, read_entries, &wrong) == 0);
	read_entries(&wrong);
	MUST(pthread_join(other, NULL) == 0);
	for (int i = 0; i < SHARED; i++)
		wrong += shown[i] != 1;
	CHECK(wrong == 0, "two threads read one stream by readdir_r, and get each entry once");
	closedir(shared);
}

int main(int argc, char **argv)
{
	check_begin(argc, argv);
	MUST(chdir(check_dir) == 0);
	put_text("a1", "text");
	put_text("a2", "");
	put_text("b1", "");
	put_text(".hidden", "");
	MUST(mkdir("d", 0755) == 0 && mkdir("d/d1", 0755) == 0 && mkdir("d/d2", 0755) == 0 && mkdir("e", 0755) == 0);
	put_text("d/d1/f", "1");
	put_text("d/d2/g", "22");
	MUST(symlink("../d/d1", "e/link") == 0);
	globs();
	MUST(symlink("nowhere", "e/broken") == 0);
	words();
	tree_walks();
	file_walks();
	scans();
	shared_stream();
	return check_end();
}
