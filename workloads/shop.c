/* A small shop: one static program with SQLite in it that answers HTTP/1.1. Each page takes a dozen queries, as pages of real
 * shops do. It sleeps until a request comes. Any path is a page; `category=N` in it chooses which.
 * Usage: shop [PORT] */
#define _GNU_SOURCE
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <sqlite3.h>

#define CONNECTIONS 64
#define CATEGORIES 20
#define DATABASE "/tmp/shop.db"

static const char *const schema =
	"BEGIN;"
	"CREATE TABLE category (id INTEGER PRIMARY KEY, name TEXT);"
	"CREATE TABLE product (id INTEGER PRIMARY KEY, category INTEGER, name TEXT, price INTEGER, sold INTEGER);"
	"CREATE TABLE review (product INTEGER, stars INTEGER, words TEXT);"
	"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20)"
	" INSERT INTO category SELECT i, 'Category ' || i FROM n;"
	"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 400)"
	" INSERT INTO product SELECT i, 1 + i % 20, 'Product ' || i, (i * 7919) % 10007, (i * 104729) % 997 FROM n;"
	"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000)"
	" INSERT INTO review SELECT 1 + i % 400, 1 + (i * 31) % 5, 'These are the words of review ' || i FROM n;"
	"CREATE INDEX product_category ON product (category, price);"
	"CREATE INDEX product_sold ON product (sold);"
	"CREATE INDEX review_product ON review (product);"
	"COMMIT;";

struct connection {
	int fd;
	size_t length;
	char request[8192];
};

struct page {
	size_t length;
	char text[32768];
};

static sqlite3_stmt *category_name, *products, *reviews, *best;

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static void add(struct page *page, const char *format, ...)
{
	size_t room = sizeof(page->text) - page->length;
	va_list arguments;
	int n;

	va_start(arguments, format);
	n = vsnprintf(page->text + page->length, room, format, arguments);
	va_end(arguments);
	if (0 < n && (size_t)n < room)
		page->length += (size_t)n;
}

static sqlite3_stmt *prepared(sqlite3 *database, const char *query)
{
	sqlite3_stmt *statement;

	if (sqlite3_prepare_v2(database, query, -1, &statement, NULL) != SQLITE_OK) {
		fprintf(stderr, "shop: %s\n", sqlite3_errmsg(database));
		exit(1);
	}
	return statement;
}

static void open_database(void)
{
	sqlite3 *database;

	unlink(DATABASE);
	if (sqlite3_open(DATABASE, &database) != SQLITE_OK || sqlite3_exec(database, schema, NULL, NULL, NULL) != SQLITE_OK) {
		fprintf(stderr, "shop: %s\n", sqlite3_errmsg(database));
		exit(1);
	}
	category_name = prepared(database, "SELECT name FROM category WHERE id = ?");
	products = prepared(database, "SELECT id, name, price FROM product WHERE category = ? ORDER BY price LIMIT 10");
	reviews = prepared(database, "SELECT count(*), avg(stars), max(words) FROM review WHERE product = ?");
	best = prepared(database, "SELECT name, sold FROM product ORDER BY sold DESC LIMIT 5");
}

static void show_products(struct page *page, int category)
{
	sqlite3_bind_int(products, 1, category);
	while (sqlite3_step(products) == SQLITE_ROW) {
		sqlite3_bind_int(reviews, 1, sqlite3_column_int(products, 0));
		sqlite3_step(reviews);
		add(page, "<li>%s, %d.%02d, %d reviews, %.1f stars: %s</li>\n", (const char *)sqlite3_column_text(products, 1),
		    sqlite3_column_int(products, 2) / 100, sqlite3_column_int(products, 2) % 100, sqlite3_column_int(reviews, 0),
		    sqlite3_column_double(reviews, 1), (const char *)sqlite3_column_text(reviews, 2));
		sqlite3_reset(reviews);
	}
	sqlite3_reset(products);
}

static void render(struct page *page, int category)
{
	page->length = 0;
	sqlite3_bind_int(category_name, 1, category);
	sqlite3_step(category_name);
	add(page, "<!doctype html>\n<title>Shop</title>\n<h1>%s</h1>\n<ul>\n", (const char *)sqlite3_column_text(category_name, 0));
	sqlite3_reset(category_name);
	show_products(page, category);
	add(page, "</ul>\n<h2>Best sellers</h2>\n<ol>\n");
	while (sqlite3_step(best) == SQLITE_ROW)
		add(page, "<li>%s, sold %d times</li>\n", (const char *)sqlite3_column_text(best, 0), sqlite3_column_int(best, 1));
	sqlite3_reset(best);
	add(page, "</ol>\n");
}

/* 0 when the client is gone. */
static int send_all(int fd, const char *bytes, size_t length)
{
	while (0 < length) {
		ssize_t n = send(fd, bytes, length, MSG_NOSIGNAL);

		if (n <= 0)
			return 0;
		bytes += n;
		length -= (size_t)n;
	}
	return 1;
}

static int answer(int fd, const char *request)
{
	static struct page page;
	static char whole[sizeof(page.text) + 256];
	const char *chosen = strstr(request, "category=");
	int category = chosen ? atoi(chosen + strlen("category=")) : 1;
	int head;

	render(&page, 1 + (int)((unsigned)category % CATEGORIES));
	head = snprintf(whole, sizeof(whole), "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: %zu\r\n\r\n", page.length);
	memcpy(whole + head, page.text, page.length);
	return send_all(fd, whole, (size_t)head + page.length);
}

/* Answers what has come in whole. 0 when the connection is to be closed. */
static int serve(struct connection *connection)
{
	size_t room = sizeof(connection->request) - 1 - connection->length;
	ssize_t n = recv(connection->fd, connection->request + connection->length, room, 0);
	char *end;

	if (n <= 0)
		return 0;
	connection->length += (size_t)n;
	connection->request[connection->length] = 0;
	while ((end = strstr(connection->request, "\r\n\r\n"))) {
		size_t used = (size_t)(end + 4 - connection->request);

		*end = 0;
		if (!answer(connection->fd, connection->request))
			return 0;
		connection->length -= used;
		memmove(connection->request, end + 4, connection->length + 1);
	}
	return connection->length + 1 < sizeof(connection->request);
}

static int listener(int port)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons((unsigned short)port) };
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	int on = 1;

	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof(address)) || listen(fd, CONNECTIONS))
		fail("listen");
	return fd;
}

static void take(struct connection *connection, int from)
{
	struct timeval patience = { .tv_sec = 10 };
	int on = 1;

	connection->fd = accept(from, NULL, NULL);
	connection->length = 0;
	if (connection->fd < 0)
		return;
	setsockopt(connection->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	setsockopt(connection->fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
}

int main(int argc, char **argv)
{
	static struct connection connections[CONNECTIONS];
	struct pollfd wanted[CONNECTIONS + 1];
	int from;

	open_database();
	from = listener(1 < argc ? atoi(argv[1]) : 80);
	for (int i = 0; i < CONNECTIONS; i++)
		connections[i].fd = -1;
	for (;;) {
		int free = -1;

		for (int i = 0; i < CONNECTIONS; i++) {
			wanted[i] = (struct pollfd){ .fd = connections[i].fd, .events = POLLIN };
			if (connections[i].fd < 0)
				free = i;
		}
		/* Without a free place clients wait in the listener's queue. */
		wanted[CONNECTIONS] = (struct pollfd){ .fd = free < 0 ? -1 : from, .events = POLLIN };
		if (poll(wanted, CONNECTIONS + 1, -1) < 0)
			fail("poll");
		for (int i = 0; i < CONNECTIONS; i++)
			if (wanted[i].revents && !serve(&connections[i])) {
				close(connections[i].fd);
				connections[i].fd = -1;
			}
		if (wanted[CONNECTIONS].revents)
			take(&connections[free], from);
	}
}
