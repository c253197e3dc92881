#!/usr/bin/env python3
"""Every function that a header of the libraries declares has a definition in them.

usage: declared.py BUILD_DIR [FOLDER...]     folders default to kFolders; exit 1 if one is missing

Compilers accept a function that is declared and defined nowhere; only who calls it finds out, by an
error of the linker. This reads the declarations as clang's syntax tree of all headers together, with
the names the linker will look for, and compares them with the symbols of the archives in BUILD_DIR.
"""
import glob
import json
import os
import re
import subprocess
import sys

FOLDERS = ["runtime", "runtime/base", "runtime/hal", "tensor", "compiler", "compiler/ir",
           "compiler/cache", "models"]
FUNCTIONS = ("FunctionDecl", "CXXMethodDecl", "CXXConstructorDecl", "CXXDestructorDecl",
             "CXXConversionDecl")
# What holds declarations of ours. Templates are instantiated where they are used, so their bodies
# are in headers or their use does not link.
SCOPES = ("NamespaceDecl", "LinkageSpecDecl", "CXXRecordDecl")


def find_clang():
    for name in ("clang++-19", "clang++"):
        try:
            out = subprocess.run([name, "--version"], capture_output=True, text=True).stdout
        except OSError:
            continue
        version = re.search(r"version (\d+)", out)
        if version and int(version.group(1)) >= 16:
            return name
    return None


def syntax_trees(clang, root, headers):
    """Top-level declarations of namespace bm in all headers, as dictionaries."""
    text = "".join(f'#include "{h}"\n' for h in headers)
    command = [clang, "-std=c++20", "-fsyntax-only", "-w", "-DFMT_SHARED", f"-I{root}", "-xc++", "-",
               "-Xclang", "-ast-dump=json", "-Xclang", "-ast-dump-filter=bm::"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, cwd=root)
    if done.returncode != 0:
        sys.exit(f"declared.py: headers do not compile together:\n{done.stderr}")
    decoder, at, trees = json.JSONDecoder(), 0, []
    while True:
        at = re.compile(r"\s*").match(done.stdout, at).end()
        if at == len(done.stdout):
            return trees
        tree, at = decoder.raw_decode(done.stdout, at)
        trees.append(tree)


def is_bodied(node):
    return any(i.get("kind") in ("CompoundStmt", "CXXTryStmt") for i in node.get("inner", []))


def collect(node, scope, declared, bodied):
    """Adds mangled name → written name of every function below `node` to `declared`, and those
    with a body to `bodied`."""
    kind = node.get("kind")
    if kind in FUNCTIONS:
        name = node.get("mangledName")
        if not name or node.get("isImplicit") or node.get("explicitlyDeleted") or \
                node.get("explicitlyDefaulted") or node.get("pure") or \
                node.get("storageClass") == "static" and kind == "FunctionDecl":
            return
        if is_bodied(node):
            bodied.add(name)
        else:
            declared[name] = "::".join([*scope, node.get("name", "?")])
        return
    if kind not in SCOPES:
        return
    if kind == "CXXRecordDecl" and node.get("name"):
        scope = [*scope, node["name"]]
    for inner in node.get("inner", []):
        if isinstance(inner, dict):
            collect(inner, scope, declared, bodied)


def variants(name):
    """Names the linker may know a declaration by: constructors and destructors have several."""
    yield name
    for a, b in (("C1", "C2"), ("D1", "D2")):
        for match in re.finditer(a, name):
            yield name[:match.start()] + b + name[match.end():]


def defined_symbols(build):
    archives = [a for a in glob.glob(f"{build}/**/*.a", recursive=True)
                if f"{os.sep}tests{os.sep}" not in a]
    if not archives:
        sys.exit(f"declared.py: no libraries in {build}; build first")
    out = subprocess.run(["nm", "--defined-only", "--format=posix", *archives],
                         capture_output=True, text=True, check=True).stdout
    return {line.split(" ", 1)[0] for line in out.splitlines() if " " in line}


def missing_definitions(clang, root, headers, symbols):
    """Written names of declared functions without a definition, sorted."""
    declared, bodied = {}, set()
    for tree in syntax_trees(clang, root, headers):
        collect(tree, [], declared, bodied)
    if not declared:
        sys.exit("declared.py: no declarations found: clang's output is not what it was")
    return len(declared), sorted({written for name, written in declared.items()
                                  if name not in bodied and
                                  not any(v in symbols for v in variants(name))})


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    clang = find_clang()
    if not clang:
        print("declared.py: clang 16 or later is needed to read declarations")
        return 77
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    folders = sys.argv[2:] or FOLDERS
    headers = sorted(os.path.relpath(h, root) for f in folders
                     for h in glob.glob(os.path.join(root, f, "*.h")))
    count, missing = missing_definitions(clang, root, headers, defined_symbols(sys.argv[1]))
    for name in missing:
        print(f"{name} is declared in a header and defined nowhere")
    print(f"{count} declared functions, {len(missing)} without a definition")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
