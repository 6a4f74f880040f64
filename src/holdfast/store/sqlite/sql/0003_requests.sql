-- Version 3: the names of a client's tools and its metadata are parts of a run, no longer of its surface's notes.

-- A body that cannot be read stays as it is: whoever reads it says so.
UPDATE requests
SET body = CAST(
    json_remove(
        json_set(
            CAST(body AS TEXT),
            '$.client_tools', json(coalesce(json_extract(CAST(body AS TEXT), '$.echo.client_tools'), '[]')),
            '$.metadata', json(coalesce(json_extract(CAST(body AS TEXT), '$.echo.metadata'), '{}'))
        ),
        '$.echo.client_tools',
        '$.echo.metadata'
    ) AS BLOB)
WHERE CASE
    WHEN json_valid(CAST(body AS TEXT)) THEN
        json_type(CAST(body AS TEXT), '$.echo.client_tools') IS 'array'
        OR json_type(CAST(body AS TEXT), '$.echo.metadata') IS 'object'
    ELSE 0
END;
