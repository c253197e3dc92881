#!/usr/bin/env python3
"""Programs of others against `bellmetal serve`: OpenAI's and Anthropic's clients for JavaScript, and Chromium on the page and on
pages of other origins.

usage: serve_clients_test.py BELLMETAL

Needs node, npm and its registry (BM_NODE_PACKAGES names a folder that has the packages already), and for
the page Chromium. Ends with 77 and the reason when the packages cannot be had.
"""
import os
import shutil
import socket
import subprocess
import sys
import tempfile

import serve_test
from limits import seconds

CANNOT_RUN_HERE = 77
PACKAGES = ["openai@7.57.0", "@anthropic-ai/sdk@1.14.0", "puppeteer-core@24.43.1"]
HERE = os.path.dirname(os.path.abspath(__file__))


def packages(folder):
    """A folder whose node_modules has PACKAGES."""
    given = os.environ.get("BM_NODE_PACKAGES")
    if given:
        return given
    if not shutil.which("node") or not shutil.which("npm"):
        print("skipped: node and npm are not installed")
        sys.exit(CANNOT_RUN_HERE)
    done = subprocess.run(["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", *PACKAGES], cwd=folder,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=seconds(600), check=False)
    if done.returncode != 0:
        print("skipped: npm install:", done.stdout[-500:])
        sys.exit(CANNOT_RUN_HERE)
    return folder


def main():
    serve_test.BELLMETAL = sys.argv[1]
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory() as folder:
        node_folder = packages(folder)
        template = os.path.join(folder, "template.jinja")
        with open(template, "w", encoding="utf-8") as file:
            file.write(serve_test.TEMPLATE)
        with socket.socket() as free:  # of a page elsewhere
            free.bind(("127.0.0.1", 0))
            page_port = str(free.getsockname()[1])
        server = serve_test.Server("--chat-template", template, "--cors-origin", "http://localhost:" + page_port)
        runs = [["serve_clients.mjs"], ["serve_messages.mjs"]]
        if chromium:
            runs += [["serve_page.mjs", chromium], ["serve_origins.mjs", chromium, page_port]]
        else:
            print("pages were not tried: Chromium is not installed")
        codes = [subprocess.run(["node", os.path.join(HERE, script), str(server.port), *rest], cwd=node_folder,
                                timeout=seconds(300), check=False).returncode for script, *rest in runs]
        codes.append(server.stop())
    sys.exit(any(codes))


main()
