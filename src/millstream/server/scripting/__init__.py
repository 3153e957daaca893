"""EVAL, FUNCTION and what belongs to them: Lua scripts that run inside the server.

    commands ──▶ Scripts (by hash) ─────┐
       └───────▶ Libraries (functions) ─┴▶ Runner ──▶ Interpreter (lua.py) ──▶ lua_files and the script
                                             ▲                                        │
                                             └──────────── redis.call ◀───────────────┘

A script is one atomic unit: its commands run one after the other at the same time of day, and what they did goes
into the log together, as outcomes; the script itself does not. lupa brings the interpreter.
"""
