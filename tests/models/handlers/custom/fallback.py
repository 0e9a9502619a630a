def guess(row):
    return {"guess": sorted(row)}
