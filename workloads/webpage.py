#!/usr/bin/python3
"""The page of `web`: a dozen queries of PostgreSQL, as pages of real shops take. `category=N` chooses which page."""

import re
import threading

import psycopg2

local = threading.local()


def rows(query, *values):
    """Each thread has a connection of its own."""
    if not hasattr(local, "cursor"):
        connection = psycopg2.connect("dbname=postgres user=www-data host=/run/postgresql")
        connection.autocommit = True
        local.cursor = connection.cursor()
    local.cursor.execute(query, values)
    return local.cursor.fetchall()


def product(number, name, price):
    query = "SELECT count(*), avg(stars), max(words) FROM review WHERE product = %s"
    ((reviews, stars, words),) = rows(query, number)
    return f"<li>{name}, {price / 100:.2f}, {reviews} reviews, {stars:.1f} stars: {words}</li>\n"


def page(environ, start_response):
    chosen = re.search(r"category=(\d{1,6})", environ.get("QUERY_STRING", ""))
    category = 1 + int(chosen[1] if chosen else 1) % 20
    ((title,),) = rows("SELECT name FROM category WHERE id = %s", category)
    query = "SELECT id, name, price FROM product WHERE category = %s ORDER BY price LIMIT 10"
    products = "".join(product(*row) for row in rows(query, category))
    best = rows("SELECT name, sold FROM product ORDER BY sold DESC LIMIT 5")
    sold = "".join(f"<li>{name}, sold {n} times</li>\n" for name, n in best)
    head = f"<!doctype html>\n<title>Shop</title>\n<h1>{title}</h1>\n"
    body = f"{head}<ul>\n{products}</ul>\n<h2>Best sellers</h2>\n<ol>\n{sold}</ol>\n".encode()
    headers = [("Content-Type", "text/html"), ("Content-Length", str(len(body)))]
    start_response("200 OK", headers)
    return [body]
