#!/usr/bin/python3
"""The pages of `web`: `/` takes a dozen queries of PostgreSQL, as pages of real shops do, `/list` one. `category=N` chooses what
they show."""

import re
import threading
from html import escape

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


def everything(category):
    """All rows by one query; the application makes a page of them."""
    query = "SELECT product.id, name, price, stars, words FROM product JOIN review ON product = product.id WHERE category = %s"
    found = sorted(rows(query, category), key=lambda row: (row[2], row[1]))
    lines = "".join(line(*row) for row in found)
    return f"<!doctype html>\n<title>List</title>\n<table>\n{lines}</table>\n"


def line(number, name, price, stars, words):
    first = f"<tr><td>{number}<td>{escape(name)}<td>{price / 100:.2f}"
    return f"{first}<td>{stars}<td>{escape(words)}\n"


def shop(category):
    ((title,),) = rows("SELECT name FROM category WHERE id = %s", category)
    query = "SELECT id, name, price FROM product WHERE category = %s ORDER BY price LIMIT 10"
    products = "".join(product(*row) for row in rows(query, category))
    best = rows("SELECT name, sold FROM product ORDER BY sold DESC LIMIT 5")
    sold = "".join(f"<li>{name}, sold {n} times</li>\n" for name, n in best)
    head = f"<!doctype html>\n<title>Shop</title>\n<h1>{title}</h1>\n"
    return f"{head}<ul>\n{products}</ul>\n<h2>Best sellers</h2>\n<ol>\n{sold}</ol>\n"


def page(environ, start_response):
    chosen = re.search(r"category=(\d{1,6})", environ.get("QUERY_STRING", ""))
    category = 1 + int(chosen[1] if chosen else 1) % 20
    make = everything if environ.get("PATH_INFO") == "/list" else shop
    body = make(category).encode()
    headers = [("Content-Type", "text/html"), ("Content-Length", str(len(body)))]
    start_response("200 OK", headers)
    return [body]
