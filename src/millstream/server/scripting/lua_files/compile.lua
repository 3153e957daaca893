-- Text to functions: `load`, `loadstring`, and what compiles scripts and libraries.

local box = ...
local relink = box.host.relink
local uncaught, caught, bad_argument, text_argument = box.uncaught, box.caught, box.bad_argument, box.text_argument
local loadstring, select, setfenv, type, xpcall = loadstring, select, setfenv, type, xpcall
local concat, dump, gsub, sub = table.concat, string.dump, string.gsub, string.sub

-- Compile text. What Lua would take for a compiled program is text as well, and wrong.
local function compile(text, name, environment)
    if sub(text, 1, 1) == "\27" then
        local _, problem = loadstring("\1" .. sub(text, 2), name)
        return nil, (gsub(problem, "char%(1%)", "char(27)"))
    end
    local chunk, problem = loadstring(text, name)
    if not chunk then
        return nil, problem
    end
    return setfenv(loadstring(relink(dump(chunk)), name), environment)
end

-- Collect what a reader function gives.
local function pieces_of(reader)
    local pieces = {}
    while true do
        local ok, piece = xpcall(reader, uncaught)
        if not ok then
            return nil, caught(piece)
        elseif piece == nil or piece == "" then
            return concat(pieces)
        elseif type(piece) ~= "string" and type(piece) ~= "number" then
            return nil, "reader function must return a string"
        end
        pieces[#pieces + 1] = piece
    end
end

-- `load` and `loadstring` for one set of globals.
local function loaders(environment)
    local function load_text(...)
        local count = select("#", ...)
        local text, name = ...
        text = text_argument("loadstring", 1, count, text)
        return compile(text, name == nil and text or text_argument("loadstring", 2, count, name), environment)
    end
    local function load_pieces(...)
        local reader, name = ...
        if type(reader) ~= "function" then
            local kind = select("#", ...) == 0 and "no value" or type(reader)
            bad_argument(1, "load", "function expected, got " .. kind)
        end
        local text, problem = pieces_of(reader)
        if not text then
            return nil, problem
        end
        return compile(text, name == nil and "=(load)" or text_argument("load", 2, 2, name), environment)
    end
    return load_text, load_pieces
end

box.compile, box.loaders = compile, loaders
